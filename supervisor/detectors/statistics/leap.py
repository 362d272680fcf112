"""What counts as a leap of a loss, a gradient norm or a learning rate."""

from __future__ import annotations

import math

LEAP = 0.5
"""A leap is a rise by half of what was there before: the quarter by which a loss must rise to be a
crash (`benchmarks/corpus/outcome.py`), twice, because it is told from a single value."""

LOG_LEAP = math.log(1.0 + LEAP)
"""The same between logarithms."""


def is_leap(value: float, before: float, by: float = LEAP) -> bool:
    """Whether `value` lies a leap above `before`.

    What was before is the caller's to choose: the last value, the usual one, the first or the
    highest of the run. Also right for negative values; False where one of the two is NaN.
    """
    return value - before > by * abs(before)
