"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable

JITTER = 0.2


class Backoff:
    """Waits that double from `first_s` up to `longest_s`, each spread by +-20 %.

    The spread keeps many runs from restarting at the same moment after a common failure.
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
        """Returns the wait after the n-th failure without progress, counted from 1."""
        # 2**64 seconds is longer than any limit; without the cap a long run overflows the float.
        doubled = self._first_s * 2.0 ** min(max(failures, 1) - 1, 64)
        return min(doubled, self._longest_s) * self._uniform(1 - JITTER, 1 + JITTER)
