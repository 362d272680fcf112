"""Detectors of values that half precision cannot represent."""
