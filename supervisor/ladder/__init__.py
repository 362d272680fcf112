"""From risk to treatment: when, which, how often, and when to take it back."""
