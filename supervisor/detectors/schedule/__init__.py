"""Detectors of changes by the script: learning rate and batch size."""
