"""For people who write detectors: synthetic runs, and a suite that any detector must pass."""

from supervisor.testing.detector_check import OBSERVED, check_detector, hostile_run, restless_run
from supervisor.testing.synthetic_runs import HEALTHY_KINDS, TROUBLED_KINDS, synthetic_run

__all__ = [
    "HEALTHY_KINDS",
    "OBSERVED",
    "TROUBLED_KINDS",
    "check_detector",
    "hostile_run",
    "restless_run",
    "synthetic_run",
]
