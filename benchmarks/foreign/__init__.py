"""Public scripts, unmodified, plain beside supervised beside killed."""
