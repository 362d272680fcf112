"""Detectors of what a model is trained for: latents that are used, rewards that mean something."""
