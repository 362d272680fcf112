"""What the script does to its files, so that a resume can undo it."""
