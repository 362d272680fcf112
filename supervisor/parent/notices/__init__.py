"""Notices about a run, sent to people and their systems while it runs."""
