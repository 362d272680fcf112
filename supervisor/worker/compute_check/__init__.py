"""Operators that are calculated twice, to find a machine that calculates wrongly."""
