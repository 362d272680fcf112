"""Detectors of what half precision cannot hold."""
