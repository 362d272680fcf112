"""What several ranks exchange, agree on and wait for."""
