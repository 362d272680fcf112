"""Rules on the loss alone."""

from __future__ import annotations

import math
from collections import deque

from benchmarks.rules.base import RobustZ, Rule
from supervisor.records import StepRecord


class RollingMad(Rule):
    """Loss above median + k x 1.4826 x MAD of the last 50."""

    def __init__(self, k: float) -> None:
        self.k = k
        self.z = RobustZ(50)

    def strength(self, record: StepRecord) -> float:
        return self.z.update(record.loss) / self.k if record.loss_seen else 0.0


class RelativeJump(Rule):
    """Loss above 1.5 x that of the previous step."""

    def __init__(self) -> None:
        self.previous = math.nan

    def strength(self, record: StepRecord) -> float:
        before, self.previous = self.previous, record.loss
        return record.loss / (1.5 * before) if before > 0 else 0.0


class BestBlock(Rule):
    """Median of 100 steps 8 % and 8 standard errors above the best such median so far."""

    def __init__(self) -> None:
        self.block: deque[float] = deque(maxlen=100)
        self.count = 0
        self.best = math.inf
        self.excess = 0.0

    def strength(self, record: StepRecord) -> float:
        if not record.loss_seen:
            return 0.0
        self.block.append(record.loss)
        self.count += 1
        if self.count % 100:
            return self.excess
        ordered = sorted(self.block)
        median = ordered[50]
        mad = sorted(abs(v - median) for v in ordered)[50]
        error = 1.2533 * 1.4826 * mad / 10.0
        width = max(0.08 * abs(self.best), 8.0 * error)
        self.excess = (median - self.best) / width if math.isfinite(self.best) and width else 0.0
        self.best = min(self.best, median)
        return self.excess
