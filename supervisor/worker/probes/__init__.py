"""Looks inside the model that are too costly for every step, taken within a budget."""
