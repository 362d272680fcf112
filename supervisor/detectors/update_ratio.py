"""An update that changes a layer too much at once."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Alert, Cause, Severity, StepRecord


class UpdateRatioDetector(ObservedLineDetector):
    """Largest ||change|| / ||weight|| of a layer, from the looks (``update_ratio``).

    Healthy updates are around 1e-3; one that is a third of the weight leaves nothing of what a
    layer has learned within a few steps. The published rule of 10 (SageMaker Debugger) is far
    behind that.

    Args:
        line: ratio.
        patience: looks in a row; single large updates occur when a layer begins to learn.
    """

    name = "update_ratio"
    key = "update_ratio"

    def __init__(self, *, line: float = 0.3, patience: int = 2) -> None:
        super().__init__(line=line, patience=patience)

    def closeness(self, value: float) -> float:
        return value / self.line

    def describe(self, record: StepRecord, value: float) -> Alert:
        return self.alert(
            record,
            severity=Severity.MEDIUM,
            category="gradient",
            kind="update_too_large",
            cause=Cause.LEARNING_RATE,
            message=f"one update changes a layer by {value:.0%} of its weight; the learning rate "
            "is too high for it, or its gradient has no bound",
            value=value,
            threshold=self.line,
        )
