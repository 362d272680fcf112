"""Rules that add up several trends."""

from __future__ import annotations

import math
from collections import deque

from benchmarks.rules.base import Rule
from supervisor.records import StepRecord


class NoisyOr(Rule):
    """Four trend signals, combined as independent causes; alarm from 0.5 on."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=4)
        self.norms: deque[float] = deque(maxlen=21)

    def strength(self, record: StepRecord) -> float:
        calm = 1.0
        if record.loss_seen:
            self.losses.append(record.loss)
            calm *= self._loss_calm(list(self.losses))
        if record.grad_norm_seen and math.isfinite(record.grad_norm):
            self.norms.append(record.grad_norm)
            calm *= self._norm_calm(list(self.norms))
        return (1.0 - calm) / 0.5

    @staticmethod
    def _loss_calm(losses: list[float]) -> float:
        calm = 1.0
        if len(losses) >= 3 and losses[-3] < losses[-2] < losses[-1]:
            calm *= 0.7
        if len(losses) == 4:
            bends = [losses[i] - 2 * losses[i + 1] + losses[i + 2] for i in (0, 1)]
            if min(bends) > 0 and min(bends) > 0.1 * abs(losses[-1]):
                calm *= 0.6
        return calm

    @staticmethod
    def _norm_calm(norms: list[float]) -> float:
        calm = 1.0
        if len(norms) >= 3 and norms[-1] > 5.0 * norms[-3]:
            calm *= 0.5
        if len(norms) == 21 and norms[-1] > 2.0 * sorted(norms[:-1])[-1]:
            calm *= 0.4
        return calm


class SageMaker(Rule):
    """Loss not decreased by 0.1 % over 10 steps."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=11)

    def strength(self, record: StepRecord) -> float:
        if not record.loss_seen:
            return 0.0
        self.losses.append(record.loss)
        line = 0.999 * self.losses[0]
        if len(self.losses) < 11 or record.loss <= line:
            return 0.0
        return record.loss / line if line > 0 else math.inf
