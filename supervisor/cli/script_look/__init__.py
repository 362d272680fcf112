"""What `supervisor init` sees in a script, and what it writes."""
