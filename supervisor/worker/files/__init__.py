"""The script's own files: written, replayed, settled on arrival."""
