"""Detectors of what a script changes on the way: learning rate and batch size."""
