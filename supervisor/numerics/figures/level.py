"""How severe a loss of precision is: shares and relative errors against two lines."""

from __future__ import annotations

import enum
import math


class Level(str, enum.Enum):
    """Mildest first."""

    OK = "ok"
    WARNING = "warning"
    SEVERE = "severe"


WARNING_ABOVE = 0.01
SEVERE_ABOVE = 0.10
SPREAD_LINE = 1e4
"""Ratio of magnitudes within a sum from which its small addends are lost."""


def level_of(value: float) -> Level:
    """Returns the level of a share or a relative error (0.01 is 1 %); NaN is severe."""
    if math.isnan(value) or value > SEVERE_ABOVE:
        return Level.SEVERE
    return Level.WARNING if value > WARNING_ABOVE else Level.OK


def worse(first: Level, second: Level) -> Level:
    order = list(Level)
    return max(first, second, key=order.index)
