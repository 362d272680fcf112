"""What is saved, when, and by which rank."""
