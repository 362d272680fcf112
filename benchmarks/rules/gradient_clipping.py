"""Rules that were made to clip gradients, read as alarms."""

from __future__ import annotations

import math
from collections import deque

from benchmarks.rules.base import Rule
from supervisor.records import StepRecord


class ZClip(Rule):
    """Norm 2.5 standard deviations above its exponential mean (0.97), which sees clipped norms."""

    def __init__(self) -> None:
        self.start: list[float] = []
        self.mean = 0.0
        self.variance = 0.0

    def strength(self, record: StepRecord) -> float:
        norm = record.grad_norm
        if not record.grad_norm_seen or not math.isfinite(norm):
            return 0.0
        if len(self.start) < 25:
            self.start.append(norm)
            self.mean = math.fsum(self.start) / len(self.start)
            self.variance = math.fsum((v - self.mean) ** 2 for v in self.start) / len(self.start)
            return 0.0
        std = math.sqrt(self.variance) or 1e-12
        z = (norm - self.mean) / std
        kept = self.mean + 2.5 * std / (z / 2.5) if z > 2.5 else norm
        self.mean = 0.97 * self.mean + 0.03 * kept
        self.variance = 0.97 * self.variance + 0.03 * (kept - self.mean) ** 2
        return z / 2.5


class NormJump(Rule):
    """Norm above 5 x that of two steps ago."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=2)

    def strength(self, record: StepRecord) -> float:
        if not record.grad_norm_seen or not math.isfinite(record.grad_norm):
            return 0.0
        known = len(self.last) == 2 and self.last[0] > 0
        strength = record.grad_norm / (5.0 * self.last[0]) if known else 0.0
        self.last.append(record.grad_norm)
        return strength
