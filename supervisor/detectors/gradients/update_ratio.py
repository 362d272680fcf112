"""An update that changes a layer too much at once."""

from __future__ import annotations

from supervisor.detectors.base.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity

MIN_LOOKS = 20

SMALL = 0.02
"""Smaller updates are never a leap: fine-tuning begins with hardly any."""


class UpdateRatioDetector(ObservedLineDetector):
    """Largest ||change|| / ||weight|| of a layer, from the looks (``update_ratio``).

    Healthy updates are around 0.01 in small models and 0.001 in large ones. Trouble is an update
    that leaps beyond all earlier ones of the run, or that is half of the weight.

    Args:
        line: ratio; the highest in a healthy run of benchmarks/corpus is 0.38.
        leap: multiple of the highest earlier ratio, from the 20th look on.
        patience: looks in a row; single large updates occur when a layer begins to learn.
    """

    name = "update_ratio"
    key = "update_ratio"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "update_too_large"
    cause = Cause.LEARNING_RATE
    _state = (*ObservedLineDetector._state, "_highest", "_looks")

    def __init__(self, *, line: float = 0.5, leap: float = 3.0, patience: int = 2) -> None:
        self.leap = leap
        super().__init__(line=line, patience=patience)

    def _begin(self) -> None:
        super()._begin()
        self._highest = 0.0
        self._looks = 0

    def closeness(self, value: float) -> float:
        self._looks += 1
        line = self.line
        if self._looks > MIN_LOOKS:
            line = min(line, max(self.leap * self._highest, SMALL))
        if value < line:
            self._highest = max(self._highest, value)
        return value / line

    def message(self, value: float) -> str:
        return (
            f"one update changes a layer by {value:.0%} of its weight; the learning rate "
            "is too high for it, or its gradient has no bound"
        )
