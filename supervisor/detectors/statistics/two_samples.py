"""Whether two samples come from the same distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence


def kolmogorov_smirnov(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the largest distance between the two samples' distribution functions, 0 to 1."""
    first, second = sorted(one), sorted(other)
    i = j = 0
    largest = 0.0
    while i < len(first) and j < len(second):
        value = min(first[i], second[j])
        while i < len(first) and first[i] <= value:
            i += 1
        while j < len(second) and second[j] <= value:
            j += 1
        largest = max(largest, abs(i / len(first) - j / len(second)))
    return largest


def critical_distance(one: int, other: int, alpha: float) -> float:
    """The distance that samples of these sizes exceed with probability `alpha` by chance.

    Smirnov's asymptotic form, sqrt(-ln(alpha / 2) / 2 x (n + m) / (n m)).
    """
    return math.sqrt(-0.5 * math.log(0.5 * alpha) * (one + other) / (one * other))
