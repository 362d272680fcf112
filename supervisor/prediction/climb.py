"""A loss that climbs steadily, too slowly for a leap and too fast for a block of 100 steps."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Sequence
from itertools import islice

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.detectors.statistics.run_scale import TINY

WINDOW = 60
"""Steps of the line that is fitted. On the corpus' train split and the public logs 60 found more
climbs with fewer false alarms than 30 or 40."""

EVERY = 5
"""Steps between two fits, which cost some 8 us each."""

SLOPE_ERRORS = 5.0
"""Standard errors of the slope. At 5 no healthy public run (173,000 steps) and no healthy run of
the corpus' train split (57,000) climbs; at 4 the first one does."""

HALF_ERRORS = 1.0
"""The same for each half of the window: a level that jumped once is flat in one of them."""

RISE = math.log(1.15)


class Climb(NamedState):
    """Fits a line to the logarithm of the last 60 losses.

    It climbs when the whole line and both its halves rise beyond noise, by 15 % at least, better
    than a single jump between two levels would explain it, to above the best level of 30 steps that
    the run has had. From the first negative loss on nothing is judged: ratios mean nothing then.

    Attributes:
        found: whether the loss climbs, as of the last fit.
    """

    _state = ("found", "_values", "_best", "_since", "_negative")

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
        self.found = False
        self._best, is_level = _look(values, self._best)
        if is_level:
            return
        slope = _slope(values)
        if slope * (WINDOW - 1) > RISE and _errors(values, slope) > SLOPE_ERRORS:
            rising = min(_errors(v, _slope(v)) for v in (values[:half], values[half:]))
            self.found = rising > HALF_ERRORS and not _is_jump(values, slope)


def _look(values: Sequence[float], best: float) -> tuple[float, bool]:
    """The best level with these values, and whether their last quarter is near it."""
    half = WINDOW // 2
    best = min(best, math.fsum(islice(values, half, None)) / half)
    level = math.fsum(values[-WINDOW // 4 :]) / (WINDOW // 4)
    return best, level <= best + 0.8 * RISE


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


def _slope(values: Sequence[float]) -> float:
    """Least-squares slope per step."""
    count = len(values)
    return math.fsum(map(operator.mul, _PLACES[count], values)) / _spread(count)


def _errors(values: Sequence[float], slope: float) -> float:
    """The slope in its standard errors."""
    count = len(values)
    mean = math.fsum(values) / count
    places = zip(_PLACES[count], values, strict=True)
    rest = math.fsum((value - mean - slope * place) ** 2 for place, value in places)
    return slope / math.sqrt(max(rest / (count - 2), 1e-8) / _spread(count))


def _spread(count: int) -> float:
    return count * (count * count - 1) / 12.0


_PLACES = {count: [i - 0.5 * (count - 1) for i in range(count)] for count in (WINDOW, WINDOW // 2)}
"""Steps from the middle, for each number of values to which a line is fitted."""


RECENT = 50
MANY = 10.0
"""Times above all recent losses."""

ROWS = 3


class RiseFromZero(NamedState):
    """Judges rises where most losses count as zero (`RunScale`), of which ratios say nothing.

    Attributes:
        recent: the last losses that do not.
    """

    _state = ("_high", "recent")

    def __init__(self) -> None:
        self._high = 0
        self.recent: deque[float] = deque(maxlen=RECENT)

    def update(self, loss: float, *, floor: float) -> bool:
        """Takes in a finite loss; sizes up to `floor` count as zero. Returns whether three rows in
        a row lie above zero and far above the last 50 before them."""
        recent = self.recent
        was_zero = self._high or (len(recent) == RECENT and abs(recent[-1]) <= floor)
        if was_zero and loss > max(floor, MANY * max(map(abs, recent))):
            self._high += 1
        else:
            self._high = 0
            recent.append(loss)
        return self._high >= ROWS

    def reset(self) -> None:
        self._high = 0
        self.recent.clear()
