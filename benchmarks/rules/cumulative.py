"""Sums of deviations."""

from __future__ import annotations

from benchmarks.rules.base import RobustZ, Rule
from supervisor.detectors.statistics.page_hinkley import PageHinkley
from supervisor.records import StepRecord


class PageHinkleyRule(Rule):
    """Page-Hinkley on the robust z of the loss: delta 0.005, lambda 50."""

    def __init__(self) -> None:
        self.z = RobustZ(50)
        self.test = PageHinkley(delta=0.005)

    def judge(self, record: StepRecord) -> bool:
        if not record.loss_seen or self.test.update(self.z.update(record.loss)) <= 50.0:
            return False
        self.test.clear()
        return True


class Cusum(Rule):
    """One-sided CUSUM on the robust z of the loss: k 1, h 15."""

    def __init__(self) -> None:
        self.z = RobustZ(50)
        self.total = 0.0

    def judge(self, record: StepRecord) -> bool:
        if not record.loss_seen:
            return False
        self.total = max(0.0, self.total + self.z.update(record.loss) - 1.0)
        if self.total <= 15.0:
            return False
        self.total = 0.0
        return True
