"""What counts as a leap of a loss, a gradient norm or a learning rate."""

from __future__ import annotations

import math

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
