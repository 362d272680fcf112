"""The size of a signal in this run, to which ratios refer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from supervisor.detectors.statistics.robust_window import NORMAL_MAD

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


NOISE = 3.0
"""Deviations of the noise that a run had while it was learning, below which its values count as
zero, too, if that is less than `SHARE`: what is learned by heart (a loss of 2 that came down to
0.001) varies by ratios that mean nothing, while a first loss of a hundred times the later ones was
no noise. With it no kind of benchmarks/healthy is treated for what it has learned by heart."""

FADES = 0.5
"""What is left of that noise each time the run is four times as old."""

STRETCH = 20
"""Values by which each doubling of a run's age is judged: its level and its noise."""


class RunScale:
    """The size of a loss or gradient norm: of the first values that are not zero, and of less where
    the run has settled lower since.

    A first loss of a hundred times what is being learned says little. Each time the run has doubled
    its age, its zero level falls to `SHARE` of what it was at the beginning of the last doubling,
    but not below the noise of its learning. It never rises: no trouble makes a run blind. Zeros are
    left out for losses that are zero at most steps (a margin, a sparse reward).

    Attributes:
        level: the untrained size, the median magnitude of the first values; 0 while not known.
        floor: smaller values count as zero.
        noise: the standard deviation around its course while it was learning, as it counts now.
        line: no value above it can come from learning; infinity while not known. It stays: what has
            learned its data by heart may lose as much as it began with.
    """

    __slots__ = ("_age", "_first", "_next", "_stretch", "floor", "level", "line", "noise")

    def __init__(self) -> None:
        self.level = self.floor = self.noise = 0.0
        self._first: list[float] = []
        self._begin()

    def _begin(self) -> None:
        self._age = self._next = 0
        self._stretch: list[float] = []
        self.noise = 0.0
        self._settle()

    @property
    def settled(self) -> float:
        """The size to which ratios refer where most values count as zero."""
        return self.floor / SHARE

    @property
    def is_known(self) -> bool:
        return self.level > 0.0

    def update(self, value: float) -> None:
        """Takes in a value; non-finite ones are left out."""
        if not value or value - value:
            return
        age = self._age = self._age + 1
        if age < self._next:
            return
        if age <= FIRST:
            self._first.append(value)
            if age >= FEWEST:
                self._settle()
            return
        self._stretch.append(value)
        if len(self._stretch) == STRETCH:
            self._revise()
            self._stretch = []
            self._next = 1 << age.bit_length()  # the next power of two

    def _revise(self) -> None:
        """Takes in the beginning of a doubling."""
        self.noise = max(_noise(self._stretch), math.sqrt(FADES) * self.noise)
        least = max(SHARE * median(map(abs, self._stretch)), NOISE * self.noise)
        self.floor = min(self.floor, least)

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
        return {
            "first": list(self._first),
            "age": self._age,
            "stretch": list(self._stretch),
            "next": self._next,
            "floor": self.floor,
            "noise": self.noise,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """An older state has the first values alone: what came after them is learned anew."""
        self._first = list(state["first"])
        self._begin()
        self._age = int(state.get("age", len(self._first)))
        self._stretch = list(state.get("stretch", ()))
        self._next = int(state.get("next", 0))
        self.noise = float(state.get("noise", 0.0))
        self.floor = float(state.get("floor", self.floor))


def _noise(values: Sequence[float]) -> float:
    """The standard deviation of `values` around any smooth course."""
    around = zip(values, values[1:], values[2:], strict=False)
    bends = sorted(abs(here - 0.5 * (before + after)) for before, here, after in around)
    return NORMAL_MAD * bends[len(bends) // 2] / math.sqrt(1.5)
