"""Detectors of the objective: latent variables and rewards."""
