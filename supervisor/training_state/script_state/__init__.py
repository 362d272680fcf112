"""What a script's Python holds, by path: taken at each checkpoint, and once more on arrival."""
