"""A loss that does not change in a single bit."""

from __future__ import annotations

import math

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord


class ConstantLossDetector(Detector):
    """Says once that a training stands still: its loss has been the same number for many steps.

    With a gradient that is zero as well nothing is learned any more: all is learned by heart, or
    the network is dead. With a gradient the loss is not what is minimised (a surrogate, a constant
    in its place). It reports only: both are healthy now and then. Told again when the loss has
    changed and is constant for as long once more, at another value.

    Args:
        steps: in a row. Losses of batches differ in their last digits, in half precision, too.
    """

    name = "constant_loss"
    _state = ("_value", "_count", "_moving", "_told")

    def __init__(self, *, steps: int = 100) -> None:
        self.steps = steps
        self._begin()

    def _begin(self) -> None:
        self._value = math.nan
        self._count = 0
        self._moving = 0
        self._told = math.nan

    def update(self, record: StepRecord) -> Alert | None:
        self.score = 0.0
        if not record.loss_seen or not math.isfinite(record.loss):
            return None
        if record.loss != self._value:
            self._value, self._count, self._moving = record.loss, 0, 0
        self._count += 1
        self._moving += record.grad_norm_seen and record.grad_norm != 0.0
        if self._count < self.steps:
            return None
        self.score = 1.0
        if self._count > self.steps or record.loss == self._told:
            return None
        self._told = record.loss
        return self._report(record)

    def _report(self, record: StepRecord) -> Alert:
        severity, cause, kind = Severity.LOW, Cause.PLATEAU, "loss_constant"
        said, advice = "", "look at what the loss is made of"
        if record.grad_norm_seen and not self._moving:
            kind, said = "training_stands_still", ", and its gradient exactly 0"
            advice = "either all of the data is learned by heart, or no unit is active any more"
            if record.loss:
                severity, cause = Severity.HIGH, Cause.DEAD_UNITS
                advice = "the loss reaches no weight: dead units, a detached loss, or underflow"
        elif record.grad_norm_seen:
            said = ", while there is a gradient"
        return self.alert(
            record,
            severity=severity,
            category="convergence",
            kind=kind,
            cause=cause,
            message=f"the loss has been exactly {record.loss:.6g} for {self.steps} steps{said}",
            advice=advice,
            subject=Subject.LOSS,
            value=record.loss,
            threshold=float(self.steps),
        )
