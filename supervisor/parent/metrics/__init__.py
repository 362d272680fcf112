"""Figures of a run for Prometheus, served or written while it runs."""
