"""How large a signal is in this run by itself: the yardstick of all that is said in ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

FIRST = 20
"""Values that say what an untrained network gives; later ones say what training made of it."""

FEWEST = 10
"""Of these must be there before anything can be said; as many as every window needs."""

SHARE = 0.1
"""A tenth of the untrained size. What has come down to less has converged, and its ups and downs
are no ratios of anything; what rises by less has lost nothing that matters."""

BEYOND = 0.5
"""Of the first values' height or spread, above the highest of them. Chosen on the kinds of
benchmarks/healthy, none of which goes beyond it twice in three steps, and on the faults of
benchmarks/unlucky_training.py, which nearly all do."""


TINY = 1e-12
"""The smallest value of which a logarithm is taken."""


class RunScale:
    """Made of the first values of a run that are not zero, for a loss or a gradient norm.

    A loss that is zero at most steps (a margin, a sparse reward) is known by its other values.

    Attributes:
        level: the untrained size, the median magnitude of the first values; 0 while not known.
        floor: `SHARE` of it: smaller values are as good as zero.
        line: above it lies only what the run cannot have come to by learning; infinity while not
            known.
    """

    __slots__ = ("_first", "floor", "level", "line")

    def __init__(self) -> None:
        self._first: list[float] = []
        self._settle()

    @property
    def is_known(self) -> bool:
        return self.level > 0.0

    def update(self, value: float) -> None:
        """Takes in a value; what is not finite is left out."""
        if len(self._first) < FIRST and value and not value - value:
            self._first.append(value)
            if len(self._first) >= FEWEST:
                self._settle()

    def clamp(self, value: float) -> float:
        """The value, or what counts as zero in this run if it is smaller."""
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
