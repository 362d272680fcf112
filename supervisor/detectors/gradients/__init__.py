"""Detectors of gradients and of the updates made of them."""
