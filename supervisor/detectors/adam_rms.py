"""Adam's update, whose size leads the loss by a few steps."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Alert, Cause, Severity, StepRecord


class AdamRmsDetector(ObservedLineDetector):
    """RMS of the gradient over Adam's second moment, from the observed value ``adam_rms``.

    sqrt(mean(g^2 / max(v, eps^2))) of the worst tensor is about 1 when the second moment is up to
    date; above 2.3 it is stale, and a loss spike followed within 1-8 steps (arXiv 2304.13013).

    Args:
        line: value from which the second moment counts as stale.
        patience: observations in a row.
    """

    name = "adam_rms"
    key = "adam_rms"

    def __init__(self, *, line: float = 2.3, patience: int = 1) -> None:
        super().__init__(line=line, patience=patience)

    def closeness(self, value: float) -> float:
        return value / self.line

    def describe(self, record: StepRecord, value: float) -> Alert:
        return self.alert(
            record,
            severity=Severity.MEDIUM,
            category="gradient",
            kind="stale_second_moment",
            cause=Cause.DIVERGENCE,
            message=f"the gradient is {value:.3g} x what Adam's second moment expects; a spike may "
            "follow within a few steps; a smaller beta2 or update clipping helps",
            value=value,
            threshold=self.line,
        )
