"""Forwards, backwards and updates: seen live, answered in a replay."""
