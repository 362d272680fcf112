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
        self.above = 0
        self.seen = 0
        self.line = math.nan

    def judge(self, record: StepRecord) -> bool:
        if not record.loss_seen:
            return False
        self.seen += 1
        window, size = self.window, self.window.maxlen or 1
        full = len(window) == size
        mean = math.fsum(window) / len(window) if window else math.inf
        self.above = self.above + 1 if full and record.loss >= 2 * mean else 0
        window.append(record.loss)
        if self.seen == size:
            self.line = min(10.0, max(window))
        high = self.seen > 2 * size and sum(v > self.line for v in window) >= size / 2
        return self.above > 4 or high


class SixSigma(Rule):
    """Loss (or norm) above mean + 6 standard deviations of the last 128, from 64 on."""

    def __init__(self, *, with_norm: bool) -> None:
        self.with_norm = with_norm
        self.losses: deque[float] = deque(maxlen=128)
        self.norms: deque[float] = deque(maxlen=128)

    def judge(self, record: StepRecord) -> bool:
        alarm = record.loss_seen and _beyond(self.losses, record.loss)
        if self.with_norm and record.grad_norm_seen and math.isfinite(record.grad_norm):
            alarm = _beyond(self.norms, record.grad_norm) or alarm
        return alarm


def _beyond(window: deque[float], value: float) -> bool:
    alarm = False
    if len(window) >= 64:
        mean = math.fsum(window) / len(window)
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in window) / (len(window) - 1))
        alarm = value > mean + 6.0 * std
    window.append(value)
    return alarm


class MegatronSpike(Rule):
    """Loss at ten times the largest of the first 100 steps."""

    def __init__(self) -> None:
        self.seen = 0
        self.largest = 0.0

    def judge(self, record: StepRecord) -> bool:
        if not record.loss_seen:
            return False
        self.seen += 1
        if self.seen <= 100:
            self.largest = max(self.largest, abs(record.loss))
            return False
        return abs(record.loss) >= 10.0 * self.largest
