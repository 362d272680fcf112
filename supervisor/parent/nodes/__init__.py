"""Several nodes: the first one's parent decides for all, the others' start and watch their ranks.

`node_role` says which a parent is, `member_link` carries their messages, `members` is the first
parent's view of the others, `all_nodes` the ranks of all as one group, `follower` the others' loop.
"""
