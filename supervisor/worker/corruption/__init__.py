"""State that no optimizer can have made: found, named and healed."""
