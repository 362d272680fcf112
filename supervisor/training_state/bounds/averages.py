"""Moving averages of gradients and of their squares, with rounding."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.training_state.bounds.limits import Floor
from supervisor.training_state.bounds.rounding import Rounding

FIRST = 6
"""Roundings of one step of a first moment (``lerp_``), relative to the sum of its two parts."""
SECOND = 4
"""Roundings of one step of a second moment (``mul_``, ``addcmul_``), its constants' included."""
LOST = 3
"""Underflows of one step of either."""


@dataclass(frozen=True, slots=True)
class Averages:
    """``m = keep1 m + take1 |g|`` at most and ``v = keep2 v + take2 g^2`` at least, less `lost`.

    Attributes:
        lost: what underflows in one step of either.
    """

    keep1: float
    take1: float
    keep2: float
    take2: float
    lost: float

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, beta1: float, beta2: float, rounding: Rounding) -> Averages | None:
        """Returns them; None if the betas are not those of averages."""
        if not (0.0 <= beta1 < 1.0 and 0.0 <= beta2 < 1.0):
            return None
        up, down = 1 + FIRST * rounding.unit, 1 - SECOND * rounding.unit
        return cls(
            keep1=beta1 * up,
            take1=(1 - beta1) * up,
            keep2=beta2 * down,
            take2=(1 - beta2) * down,
            lost=LOST * rounding.tiny,
        )

    def root_constant(self) -> float:
        """Returns C with ``|m| <= C sqrt(v)``; infinite where Cauchy-Schwarz gives none."""
        if not self.keep1 * self.keep1 < self.keep2:
            return math.inf
        return self.take1 / math.sqrt(self.take2 * (1 - self.keep1 * self.keep1 / self.keep2))

    def root_slack(self, constant: float) -> float:
        """Returns what underflow adds to ``C sqrt(v)``."""
        if self.keep1 >= 1.0:
            return math.inf
        return (constant * math.sqrt(self.lost) + self.lost) / (1 - self.keep1)

    def gradient_over_root(self, eps: float) -> float:
        """Returns the largest ``|g| / (sqrt(v) + eps)`` right after `g` went into `v`."""
        root = math.sqrt(self.take2)
        return 1 / root + math.sqrt(self.lost) / root / eps


def floor_of(keeps: Iterable[float], lost: float) -> Floor:
    """Returns the floor of an average that keeps these shares of itself, one an update."""
    factor, slack = 1.0, 0.0
    for keep in keeps:
        factor, slack = factor * keep, slack * keep + lost
    return Floor(factor, slack)
