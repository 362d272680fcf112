"""An observed value that has grown far beyond what it used to be."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord


class ObservedGrowthDetector(Detector):
    """Alerts when a positive value is `factor` times its median for `patience` observations.

    The median is taken over the last `window` observations that were below the line; after `window`
    observations beyond it the new level is adopted. A subclass names the value.
    """

    observed_only = True
    key: ClassVar[str]
    severity: ClassVar[Severity]
    category: ClassVar[str]
    kind: ClassVar[str]
    cause: ClassVar[Cause]
    _state = ("_usual", "_count", "_beyond")

    def __init__(self, *, factor: float, patience: int, window: int) -> None:
        if factor <= 1.0:
            raise ValueError(f"factor: expected more than 1, got {factor}")
        self.factor = factor
        self.patience = patience
        self.window = window
        self._begin()

    def _begin(self) -> None:
        self._usual = RobustWindow(self.window)
        self._count = 0
        self._beyond: list[float] = []

    def update(self, record: StepRecord) -> Alert | None:
        value = record.observed.get(self.key) if record.observed else None
        if value is None or not 0.0 < value < math.inf:
            return None
        usual = self._usual
        if len(usual) < min(10, self.window):
            usual.add(value)
            return None
        grown = value / max(usual.median, 1e-300)
        self.score = min(10.0, math.log(grown) / math.log(self.factor)) if grown > 1.0 else 0.0
        if grown < self.factor:
            self._count, self._beyond = 0, []
            usual.add(value)
            return None
        self._count += 1
        self._beyond.append(value)
        median = usual.median
        if len(self._beyond) >= self.window:
            for late in self._beyond:
                usual.add(late)
            self._beyond = []
        if self._count < self.patience:
            self.score = min(self.score, 0.9)
        if self._count != self.patience:
            return None
        return self.alert(
            record,
            severity=self.severity,
            category=self.category,
            kind=self.kind,
            cause=self.cause,
            message=self.message(value, median),
            value=value,
            threshold=self.factor * median,
            metadata={"figure": self.key, "usual": median},
        )

    @abstractmethod
    def message(self, value: float, usual: float) -> str:
        """Says what is wrong with `value`, whose median was `usual`, and what to do."""
