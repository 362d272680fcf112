"""Signals of the crash predictor: one kind of trouble a file."""
