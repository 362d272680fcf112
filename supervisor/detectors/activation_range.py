"""Activations that come near the largest number of FP16."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class ActivationRangeDetector(ObservedLineDetector):
    """Largest FP16 activation as a share of 65,504, from the looks (``activation_range``).

    Args:
        line: share; 0.9 is about 60,000. The next doubling is infinite.
        patience: looks in a row.
    """

    name = "activation_range"
    key = "activation_range"
    severity = Severity.HIGH
    advice = "run that layer in FP32 or BF16, or normalise its input"
    category = "precision"
    kind = "activation_near_overflow"
    cause = Cause.NONFINITE

    def __init__(self, *, line: float = 0.9, patience: int = 1) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return f"an FP16 activation has reached {value:.0%} of the format's largest number"
