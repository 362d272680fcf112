"""Sums of deviations."""

from __future__ import annotations

from benchmarks.rules.base import RobustZ, Rule
from supervisor.records import StepRecord


class PageHinkleyRule(Rule):
    """Page-Hinkley (1954) on the robust z of the loss: what has accumulated above the mean so far
    less `delta` a step, from its lowest; lambda 50."""

    def __init__(self, line: float = 50.0, delta: float = 0.005) -> None:
        self.line = line
        self.delta = delta
        self.z = RobustZ(50)
        self._clear()

    def _clear(self) -> None:
        self._count, self._mean, self._sum, self._lowest = 0, 0.0, 0.0, 0.0

    def strength(self, record: StepRecord) -> float:
        if not record.loss_seen:
            return 0.0
        value = self.z.update(record.loss)
        self._count += 1
        self._mean += (value - self._mean) / self._count
        self._sum += value - self._mean - self.delta
        self._lowest = min(self._lowest, self._sum)
        strength = (self._sum - self._lowest) / self.line
        if strength >= 1.0:
            self._clear()
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
