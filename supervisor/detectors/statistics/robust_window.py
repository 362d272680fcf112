"""Median, median absolute deviation and quantiles of the last values of a signal."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Any

NORMAL_MAD = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""

RESORT = 8
"""Values after which a window that nobody asked is no longer kept sorted, because sorting it again
costs less."""


class RobustWindow:
    """The last `size` finite values, in order of time, and sorted on demand.

    Windows that are asked at every step are kept sorted by bisection; the others only take values
    in. Non-finite values are left out.

    Attributes:
        held: the values, oldest first; only to be looked at.
        floor, ceiling: bounds of all values, cheap and seldom far from the lowest and the highest;
            `inf` and `-inf` when empty.
    """

    __slots__ = (
        "_added",
        "_last_order",
        "_mad",
        "_median",
        "_sorted",
        "_unasked",
        "ceiling",
        "floor",
        "held",
        "size",
    )

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: deque[float] = deque(maxlen=size)
        self._sorted: list[float] | None = None
        self._last_order: list[float] = []  # as it was when it was given up
        self._added = 0  # values since then
        self._unasked = 0
        self._mad: float | None = None
        self._median: float | None = None
        self.floor = math.inf
        self.ceiling = -math.inf

    def __len__(self) -> int:
        return len(self.held)

    def add(self, value: float) -> None:
        """Takes in `value` and forgets the oldest one when the window is full."""
        if value - value:  # NaN unless it is finite: no call for what is asked so often
            return
        values, ordered = self.held, self._sorted
        if ordered is not None:
            if len(values) == self.size:
                del ordered[bisect_left(ordered, values[0])]
            insort(ordered, value)
            self._unasked += 1
            if self._unasked > self.size // RESORT:
                self._sorted, self._last_order = None, ordered
        else:
            self._added += 1
        values.append(value)
        self._mad = self._median = None
        if value < self.floor:
            self.floor = value
        if value > self.ceiling:
            self.ceiling = value

    def shrink(self, size: int) -> None:
        """Forgets the oldest values beyond the last `size`; the window may grow again."""
        values, ordered = self.held, self._sorted
        while len(values) > size:
            value = values.popleft()
            if ordered is not None:
                del ordered[bisect_left(ordered, value)]
            self._mad = self._median = None

    def clear(self) -> None:
        self.held.clear()
        self._sorted = self._mad = self._median = None
        self._last_order = []
        self.floor = math.inf
        self.ceiling = -math.inf

    @property
    def median(self) -> float:
        """NaN when empty."""
        found = self._median
        if found is None:
            found = self._median = self._compute_median()
        return found

    def is_surely_near(self, value: float, rise: float) -> bool:
        """Returns True if it is known without sorting that `value` is at most `rise` above the
        median.

        False says nothing. Each value added since the window was last sorted can have moved the
        median down by one place.
        """
        ordered = self._sorted
        place = (len(self.held) - 1) // 2
        if ordered is None:
            ordered, place = self._last_order, place - self._added
        return place >= 0 and value - ordered[place] <= rise

    @property
    def mad(self) -> float:
        """Median of the distances from the median; NaN when empty."""
        if self._mad is None:
            self._mad = self._compute_mad()
        return self._mad

    @property
    def sigma(self) -> float:
        """Standard deviation of the normal distribution with this MAD."""
        return NORMAL_MAD * self.mad

    @property
    def lowest(self) -> float:
        return self._order()[0] if self.held else math.nan

    @property
    def highest(self) -> float:
        return self._order()[-1] if self.held else math.nan

    @property
    def mean(self) -> float:
        return math.fsum(self.held) / len(self.held) if self.held else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation; NaN when empty."""
        if not self.held:
            return math.nan
        mean = self.mean
        return math.sqrt(math.fsum([(v - mean) ** 2 for v in self.held]) / len(self.held))

    def quantile(self, share: float) -> float:
        """The value at `share` (0...1) of the sorted window, nearest rank; NaN when empty."""
        if not self.held:
            return math.nan
        return self._order()[round(share * (len(self.held) - 1))]

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.held)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clear()
        self.held.extend(state["values"])
        self._order()

    def _order(self) -> list[float]:
        """The values in ascending order."""
        self._unasked = 0
        ordered = self._sorted
        if ordered is None:
            self._sorted = ordered = sorted(self.held)
            self._added = 0
        if ordered:
            self.floor, self.ceiling = ordered[0], ordered[-1]
        return ordered

    def _compute_median(self) -> float:
        ordered = self._sorted
        if ordered is None:
            ordered = self._order()
        self._unasked = 0
        count = len(ordered)
        if not count:
            return math.nan
        middle = count // 2
        if count % 2:
            return ordered[middle]
        return 0.5 * (ordered[middle - 1] + ordered[middle])

    def _compute_mad(self) -> float:
        count = len(self.held)
        if not count:
            return math.nan
        median = self.median
        upper = self._nearest(median, count // 2 + 1)
        if count % 2:
            return upper
        return 0.5 * (upper + self._nearest(median, count // 2))

    def _nearest(self, center: float, count: int) -> float:
        """Distance from `center` of the `count`-th nearest value."""
        values = self._order()
        low, high = 0, len(values) - count
        while low < high:
            middle = (low + high) // 2
            if center - values[middle] > values[middle + count] - center:
                low = middle + 1
            else:
                high = middle
        return max(center - values[low], values[low + count - 1] - center)


LEAP = 0.5
"""Relative rise of a leap: twice the quarter that makes a crash (`benchmarks/corpus/outcome.py`),
because it is judged by a single value."""

LOG_LEAP = math.log(1.0 + LEAP)
"""The same as a difference of logarithms."""


def is_leap(value: float, before: float, by: float = LEAP) -> bool:
    """Whether `value` lies a leap above `before`.

    The caller chooses `before`: the last value, the usual one, the highest of the run. Also right
    for negative values; False if one of the two is NaN.
    """
    return value - before > by * abs(before)
