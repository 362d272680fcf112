"""Random generators, where a replay needs their states."""
