"""The size of a signal in this run, to which ratios refer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

FIRST = 20
"""Values at the start that show the untrained network."""

FEWEST = 10
"""Values needed before anything is known; as many as every window needs."""

SHARE = 0.1
"""Share of the untrained size below which a signal has converged: ratios of smaller values mean
nothing."""

BEYOND = 0.5
"""Share of the first values' height or spread, above the highest of them; no kind of
benchmarks/healthy exceeds it twice in three steps, nearly all faults of
benchmarks/unlucky_training.py do."""


TINY = 1e-12
"""The smallest value of which a logarithm is taken."""


class RunScale:
    """The size of a loss or gradient norm, learned from the first values that are not zero.

    Zeros are left out for losses that are zero at most steps (a margin, a sparse reward).

    Attributes:
        level: the untrained size, the median magnitude of the first values; 0 while not known.
        floor: `SHARE` of the level; smaller values count as zero.
        line: no value above it can come from learning; infinity while not known.
    """

    __slots__ = ("_first", "floor", "level", "line")

    def __init__(self) -> None:
        self._first: list[float] = []
        self._settle()

    @property
    def is_known(self) -> bool:
        return self.level > 0.0

    def update(self, value: float) -> None:
        """Takes in a value; non-finite ones are left out."""
        if len(self._first) < FIRST and value and not value - value:
            self._first.append(value)
            if len(self._first) >= FEWEST:
                self._settle()

    def clamp(self, value: float) -> float:
        """Returns the value, or `floor` if that is larger."""
        return value if value > self.floor else self.floor

    def _settle(self) -> None:
        first = self._first
        if len(first) < FEWEST:
            self.level, self.floor, self.line = 0.0, 0.0, math.inf
            return
        self.level = median(map(abs, first))
        self.floor = SHARE * self.level
        top = max(first)
        self.line = top + BEYOND * max(abs(top), top - min(first))

    def state_dict(self) -> dict[str, Any]:
        return {"first": list(self._first)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first = list(state["first"])
        self._settle()
