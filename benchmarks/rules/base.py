"""What a rule is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque

from supervisor.records import StepRecord


class Rule(ABC):
    """Judges one step at a time. A loss that is not finite is an alarm for every rule."""

    def update(self, record: StepRecord) -> bool:
        """Whether this step is an alarm by the rule's published constant."""
        return self.measure(record) >= 1.0

    def measure(self, record: StepRecord) -> float:
        """How strong the rule's evidence is, in units of its published line."""
        return math.inf if record.has_nonfinite_loss else self.strength(record)

    @abstractmethod
    def strength(self, record: StepRecord) -> float:
        """The same for a finite step."""


class RobustZ:
    """(value - median) / (1.4826 x MAD) over the last `size` values."""

    def __init__(self, size: int = 50) -> None:
        self.values: deque[float] = deque(maxlen=size)

    def update(self, value: float) -> float:
        z = 0.0
        if len(self.values) >= 10:
            ordered = sorted(self.values)
            median = ordered[len(ordered) // 2]
            mad = sorted(abs(v - median) for v in ordered)[len(ordered) // 2]
            z = (value - median) / max(1.4826 * mad, 1e-12)
        if math.isfinite(value):
            self.values.append(value)
        return z
