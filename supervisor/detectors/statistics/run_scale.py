"""The size of a signal in this run, to which ratios refer."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from statistics import median

from supervisor.detectors.statistics.named_state import NamedState

FIRST = 20
"""Values at the start that show the untrained network."""

FEWEST = 10
"""Values needed before anything is known; as many as every window needs."""

SHARE = 0.1
"""Share of the size of a run below which a signal has converged: ratios of smaller values mean
nothing."""

NOISE = 3.0
"""And standard deviations of the noise that it had while it was learning: what is learned by heart
(a loss of 2 that came down to 0.001) varies by ratios that mean nothing, while a first loss of a
hundred times the later ones was no noise."""

MEMORY = 4
"""Looks at that noise which count, each at twice the age of the last: what a run was like before
it was a sixteenth as old is forgotten."""

STEADY = 10.0
"""Highest of the last values over their median, at most: of heavier tails ratios mean nothing."""

BEYOND = 0.5
"""Share of the first values' height or spread, above the highest of them; no kind of
benchmarks/healthy exceeds it twice in three steps, nearly all faults of
benchmarks/unlucky_training.py do."""


TINY = 1e-12
"""The smallest value of which a logarithm is taken."""

LEAST = sys.float_info.min
"""The smallest zero level: of values smaller still a tenth is 0."""


class RunScale(NamedState):
    """The size of a loss or gradient norm, learned from the first values that are not zero.

    A first loss of a hundred times what is being learned says little. Each time the run is twice as
    old, the zero level falls to `SHARE` of its last 20 values, but not below the noise of its
    learning. It never rises: no trouble makes a run blind. Zeros are left out for losses that are
    zero at most steps (a margin, a sparse reward).

    Attributes:
        level: the untrained size, the median magnitude of the first values; 0 while not known.
        floor: smaller values count as zero.
        line: no value above it can come from learning; infinity while not known. It stays: what has
            learned its data by heart may lose as much as it began with.
    """

    __slots__ = _state = ("_age", "_first", "_last", "_next", "_noises", "floor", "level", "line")

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: list[float] = []
        self._age, self._next = 0, 2 * FIRST
        self._noises: deque[float] = deque(maxlen=MEMORY)
        self._settle()

    @property
    def usual(self) -> float:
        """The size to which ratios refer where most values count as zero."""
        return self.floor / SHARE

    def update(self, value: float) -> None:
        """Takes in a value; non-finite ones are left out."""
        if not value or value - value:
            return
        age = self._age = self._age + 1
        if age <= FIRST:
            self._first.append(value)
            if age >= FEWEST:
                self._settle()
        elif age > self._next - FIRST:
            self._last.append(value)
            if age == self._next:
                self._revise()

    def _settle(self) -> None:
        first = self._first
        if len(first) < FEWEST:
            self.level, self.floor, self.line = 0.0, 0.0, math.inf
            return
        self.level = median(map(abs, first))
        self.floor = max(SHARE * self.level, LEAST)
        top = max(first)
        self.line = top + BEYOND * max(abs(top), top - min(first))

    def _revise(self) -> None:
        last = self._last
        self._noises.append(_noise(last))
        usual = median(map(abs, last))
        if max(map(abs, last)) <= STEADY * usual:
            self.floor = min(self.floor, max(SHARE * usual, NOISE * max(self._noises), LEAST))
        self._next *= 2
        last.clear()


def _noise(values: Sequence[float]) -> float:
    """The standard deviation of `values` around any smooth course: outliers count, because a heavy
    tail is what makes ratios to the middle mean nothing."""
    around = zip(values, values[1:], values[2:], strict=False)
    bends = [here - 0.5 * (before + after) for before, here, after in around]
    return math.sqrt(sum(bend * bend for bend in bends) / (1.5 * len(bends)))
