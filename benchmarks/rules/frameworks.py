"""Rules that training frameworks ship."""

from __future__ import annotations

import math
from collections import deque

from benchmarks.rules.base import Rule
from supervisor.records import StepRecord


class KillLossSpike(Rule):
    """Loss at twice the window's mean for more than 4 steps, or half a window above its start."""

    def __init__(self, rows: int) -> None:
        self.window: deque[float] = deque(maxlen=max(100, rows // 20))
        self.ratios: deque[float] = deque(maxlen=5)
        self.seen = 0
        self.line = math.nan

    def strength(self, record: StepRecord) -> float:
        if not record.loss_seen:
            return 0.0
        self.seen += 1
        window, size = self.window, self.window.maxlen or 1
        mean = math.fsum(window) / size if len(window) == size else math.inf
        self.ratios.append(record.loss / (2 * mean) if mean else 0.0)
        window.append(record.loss)
        if self.seen == size:
            self.line = min(10.0, max(window))
        high = self.seen > 2 * size and sum(v > self.line for v in window) >= size / 2
        return max(float(high), min(self.ratios) if len(self.ratios) == 5 else 0.0)


class SixSigma(Rule):
    """Loss (or norm) above mean + 6 standard deviations of the last 128, from 64 on."""

    def __init__(self, *, with_norm: bool) -> None:
        self.with_norm = with_norm
        self.losses: deque[float] = deque(maxlen=128)
        self.norms: deque[float] = deque(maxlen=128)

    def strength(self, record: StepRecord) -> float:
        strength = _sixths(self.losses, record.loss) if record.loss_seen else 0.0
        if self.with_norm and record.grad_norm_seen and math.isfinite(record.grad_norm):
            strength = max(strength, _sixths(self.norms, record.grad_norm))
        return strength


def _sixths(window: deque[float], value: float) -> float:
    """Standard deviations above the mean, divided by 6; then `value` enters the window."""
    strength = 0.0
    if len(window) >= 64:
        mean = math.fsum(window) / len(window)
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in window) / (len(window) - 1))
        strength = (value - mean) / (6.0 * std) if std else float(value > mean)
    window.append(value)
    return strength


class MegatronSpike(Rule):
    """Loss at ten times the largest of the first 100 steps."""

    def __init__(self) -> None:
        self.seen = 0
        self.largest = 0.0

    def strength(self, record: StepRecord) -> float:
        if not record.loss_seen:
            return 0.0
        self.seen += 1
        if self.seen <= 100:
            self.largest = max(self.largest, abs(record.loss))
            return 0.0
        return abs(record.loss) / (10.0 * self.largest) if self.largest else math.inf
