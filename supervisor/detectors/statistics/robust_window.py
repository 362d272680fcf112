"""Median, median absolute deviation and quantiles of the last values of a signal."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Any

NORMAL_MAD = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""


class RobustWindow:
    """The last `size` finite values, kept both in order of time and sorted.

    Keeping the sorted list up to date by bisection costs about half a microsecond for 50 values,
    less than any call into NumPy; the MAD is found by bisection too. Non-finite values are not
    taken in, so that one NaN cannot blind the window.
    """

    __slots__ = ("_mad", "_median", "_sorted", "_values", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []
        self._mad: float | None = None
        self._median: float | None = None

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Takes in `value` and forgets the oldest one when the window is full."""
        if not math.isfinite(value):
            return
        values, ordered = self._values, self._sorted
        if len(ordered) >= self.size:
            del ordered[bisect_left(ordered, values.popleft())]
        values.append(value)
        insort(ordered, value)
        self._mad = self._median = None

    def shrink(self, size: int) -> None:
        """Forgets the oldest values beyond the last `size`; the window may grow again."""
        while len(self._values) > size:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
            self._mad = self._median = None

    def clear(self) -> None:
        self._values.clear()
        self._sorted.clear()
        self._mad = self._median = None

    @property
    def median(self) -> float:
        """NaN when empty."""
        if self._median is None:
            self._median = self._compute_median()
        return self._median

    @property
    def mad(self) -> float:
        """Median of the distances from the median; NaN when empty."""
        if self._mad is None:
            self._mad = self._compute_mad()
        return self._mad

    @property
    def sigma(self) -> float:
        """The standard deviation that a normal distribution with this MAD would have."""
        return NORMAL_MAD * self.mad

    @property
    def lowest(self) -> float:
        return self._sorted[0] if self._sorted else math.nan

    @property
    def highest(self) -> float:
        return self._sorted[-1] if self._sorted else math.nan

    @property
    def mean(self) -> float:
        return math.fsum(self._values) / len(self._values) if self._values else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation; NaN when empty."""
        if not self._values:
            return math.nan
        mean = self.mean
        return math.sqrt(math.fsum((v - mean) ** 2 for v in self._values) / len(self._values))

    def quantile(self, share: float) -> float:
        """The value at `share` (0...1) of the sorted window, nearest rank; NaN when empty."""
        if not self._sorted:
            return math.nan
        return self._sorted[round(share * (len(self._sorted) - 1))]

    def values(self) -> list[float]:
        """The values, oldest first."""
        return list(self._values)

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = deque(state["values"])
        self._sorted = sorted(self._values)
        self._mad = self._median = None

    def _compute_median(self) -> float:
        count = len(self._sorted)
        if not count:
            return math.nan
        middle = count // 2
        if count % 2:
            return self._sorted[middle]
        return 0.5 * (self._sorted[middle - 1] + self._sorted[middle])

    def _compute_mad(self) -> float:
        count = len(self._sorted)
        if not count:
            return math.nan
        median = self.median
        upper = self._nearest(median, count // 2 + 1)
        if count % 2:
            return upper
        return 0.5 * (upper + self._nearest(median, count // 2))

    def _nearest(self, center: float, count: int) -> float:
        """Distance from `center` of the `count`-th nearest value."""
        values = self._sorted
        low, high = 0, len(values) - count
        while low < high:
            middle = (low + high) // 2
            if center - values[middle] > values[middle + count] - center:
                low = middle + 1
            else:
                high = middle
        return max(center - values[low], values[low + count - 1] - center)
