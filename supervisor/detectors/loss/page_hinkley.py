"""A change of the mean, seen by its accumulated deviations."""

from __future__ import annotations

import math

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.page_hinkley import PageHinkley
from supervisor.detectors.statistics.reference import Reference
from supervisor.records import Alert, Cause, Severity, StepRecord


class PageHinkleyDetector(Detector):
    """Page-Hinkley test on the robust z of the loss: finds small shifts that last. Reports only.

    Args:
        delta: deviation per step, in scales, that is tolerated.
        line: accumulated deviation that is a change.
    """

    name = "page_hinkley"
    _state = ("_reference", "_test")

    def __init__(self, *, delta: float = 0.5, line: float = 50.0) -> None:
        self.delta = delta
        self.line = line
        self._begin()

    def _begin(self) -> None:
        self._reference = Reference()
        self._test = PageHinkley(delta=self.delta)

    def update(self, record: StepRecord) -> Alert | None:
        if not record.loss_seen or not 0 < record.loss < math.inf:
            return None
        inner = math.log(record.loss)
        if len(self._reference) >= 10:
            self._test.update(max(-10.0, min(10.0, self._reference.z(inner))))
        self._reference.push(inner)
        self.score = self._test.deviation / self.line
        if self.score < 1.0:
            return None
        value = self._test.deviation
        self._test.clear()
        return self.alert(
            record,
            severity=Severity.LOW,
            category="loss",
            kind="level_change",
            cause=Cause.DIVERGENCE,
            message="the loss has moved to a higher level by many small steps",
            subject=Subject.LOSS,
            value=value,
            threshold=self.line,
        )
