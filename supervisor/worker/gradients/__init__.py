"""The script's own gradients and hooks, live and in a replay."""
