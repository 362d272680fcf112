"""A loss that climbs steadily, too slowly for a leap and too fast for a block of 100 steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from supervisor.prediction.trajectory import TINY

WINDOW = 60
"""Steps of the line that is fitted. On the corpus' train split and the public logs 60 found more
climbs with fewer false alarms than 30 or 40."""

EVERY = 5
"""Steps between two fits, which cost 20 us each."""

SLOPE_ERRORS = 5.0
"""Standard errors of the slope. At 5 no healthy public run (173,000 steps) and no healthy run of
the corpus' train split (57,000) climbs; at 4 the first one does."""

HALF_ERRORS = 1.0
"""The same for each half of the window: a level that jumped once is flat in one of them."""

RISE = math.log(1.15)


class Climb:
    """Fits a line to the logarithm of the last 60 losses.

    It climbs when the whole line and both its halves rise beyond noise, by 15 % at least, better
    than a single jump between two levels would explain it, to above the best level of 30 steps that
    the run has had. From the first negative loss on nothing is judged: ratios mean nothing then.

    Attributes:
        found: whether the loss climbs, as of the last fit.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.found = False
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._best = math.inf
        self._since = 0
        self._negative = False

    def update(self, value: float) -> None:
        """Takes in a finite loss."""
        if value < 0 or self._negative:
            self._negative, self.found = True, False
            return
        self._values.append(math.log(max(value, TINY)))
        self._since += 1
        if self._since >= EVERY and len(self._values) == WINDOW:
            self._since = 0
            self._fit()

    def _fit(self) -> None:
        values = list(self._values)
        half = WINDOW // 2
        self._best = min(self._best, math.fsum(islice(values, half, None)) / half)
        level = math.fsum(values[-WINDOW // 4 :]) / (WINDOW // 4)
        self.found = False
        if level <= self._best + 0.8 * RISE:
            return
        slope, errors = _line(values)
        if slope * (WINDOW - 1) > RISE and errors > SLOPE_ERRORS:
            rising = min(_line(values[:half])[1], _line(values[half:])[1])
            self.found = rising > HALF_ERRORS and not _is_jump(values, slope)

    def state_dict(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "values": list(self._values),
            "best": self._best,
            "since": self._since,
            "negative": self._negative,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.found = bool(state["found"])
        self._values = deque(state["values"], maxlen=WINDOW)
        self._best = float(state["best"])
        self._since = int(state["since"])
        self._negative = bool(state["negative"])


def _is_jump(values: Sequence[float], slope: float) -> bool:
    """Whether two levels explain the values better than a line of this `slope` does."""
    count, total = len(values), math.fsum(values)
    explained = slope * slope * count * (count * count - 1) / 12.0
    before = 0.0
    for split in range(1, count):
        before += values[split - 1]
        gap = (total - before) / (count - split) - before / split
        if gap * gap * split * (count - split) / count > explained:
            return True
    return False


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope per step, and the same in standard errors."""
    count = len(values)
    middle, mean = 0.5 * (count - 1), math.fsum(values) / count
    spread = count * (count * count - 1) / 12.0
    slope = math.fsum((i - middle) * value for i, value in enumerate(values)) / spread
    rest = math.fsum((value - mean - slope * (i - middle)) ** 2 for i, value in enumerate(values))
    return slope, slope / math.sqrt(max(rest / (count - 2), 1e-8) / spread)
