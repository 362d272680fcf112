"""Optional callbacks for frameworks: they tell what interception cannot know.

Nothing here is needed for supervision, and nothing is imported unless a script asks for it. Without
`supervisor run` every callback does nothing. Each module needs its framework.
"""
