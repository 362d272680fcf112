"""A line on one observed value."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from supervisor.detectors.base import Detector
from supervisor.records import Alert, StepRecord


class ObservedLineDetector(Detector):
    """Alerts when an observed value is beyond a line for `patience` observations in a row.

    The same excursion is reported once. A subclass names the value and says what it means.
    """

    key: ClassVar[str]
    _state = ("_count",)

    def __init__(self, *, line: float, patience: int) -> None:
        self.line = line
        self.patience = patience
        self._begin()

    def _begin(self) -> None:
        self._count = 0

    def update(self, record: StepRecord) -> Alert | None:
        value = record.observed.get(self.key) if record.observed else None
        if value is None or not math.isfinite(value):
            return None
        closeness = max(0.0, min(10.0, self.closeness(value)))
        self._count = self._count + 1 if closeness >= 1.0 else 0
        self.score = closeness if self._count >= self.patience else min(closeness, 0.9)
        return self.describe(record, value) if self._count == self.patience else None

    @abstractmethod
    def closeness(self, value: float) -> float:
        """1.0 at the line, more beyond it."""

    @abstractmethod
    def describe(self, record: StepRecord, value: float) -> Alert:
        """The alert about `value`."""
