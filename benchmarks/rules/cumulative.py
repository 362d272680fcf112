"""Sums of deviations."""

from __future__ import annotations

from benchmarks.rules.base import RobustZ, Rule
from supervisor.detectors.statistics.page_hinkley import PageHinkley
from supervisor.records import StepRecord


class PageHinkleyRule(Rule):
    """Page-Hinkley on the robust z of the loss: delta 0.005, lambda 50."""

    def __init__(self, line: float = 50.0) -> None:
        self.line = line
        self.z = RobustZ(50)
        self.test = PageHinkley(delta=0.005)

    def strength(self, record: StepRecord) -> float:
        if not record.loss_seen:
            return 0.0
        strength = self.test.update(self.z.update(record.loss)) / self.line
        if strength >= 1.0:
            self.test.clear()
        return strength


class Cusum(Rule):
    """One-sided CUSUM on the robust z of the loss: k 1, h 15."""

    def __init__(self, line: float = 15.0) -> None:
        self.line = line
        self.z = RobustZ(50)
        self.total = 0.0

    def strength(self, record: StepRecord) -> float:
        if not record.loss_seen:
            return 0.0
        self.total = max(0.0, self.total + self.z.update(record.loss) - 1.0)
        strength = self.total / self.line
        if strength >= 1.0:
            self.total = 0.0
        return strength
