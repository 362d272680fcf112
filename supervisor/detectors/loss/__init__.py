"""Detectors of the loss: leaps, rises, plateaus."""
