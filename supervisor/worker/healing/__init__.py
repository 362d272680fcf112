"""A rank that dies comes back alone: what its collectives gave it is kept beside it."""
