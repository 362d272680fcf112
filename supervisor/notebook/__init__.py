"""Trainings started from a notebook or another program: `supervisor.launch`, ``%%supervise``."""
