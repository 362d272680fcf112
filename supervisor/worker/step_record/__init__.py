"""From what was seen of a step to its record."""
