"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable

JITTER = 0.2


class Backoff:
    """Waits that double from `first_s` up to `longest_s`, each spread by +-20 %.

    The spread keeps the workers of many runs from coming back at the same moment after a failure
    that they share (a file system, a scheduler).
    """

    def __init__(
        self,
        first_s: float,
        longest_s: float,
        uniform: Callable[[float, float], float] | None = None,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._uniform = uniform or random.Random().uniform

    def delay_s(self, failures: int) -> float:
        """Returns the wait after so many failures without progress, counted from 1."""
        # 2**64 seconds is longer than any limit; without the cap a long run overflows the float.
        doubled = self._first_s * 2.0 ** min(max(failures, 1) - 1, 64)
        return min(doubled, self._longest_s) * self._uniform(1 - JITTER, 1 + JITTER)
