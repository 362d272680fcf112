"""Data loaders: proved, left out of a replay, resumed."""
