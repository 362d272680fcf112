"""When the next boundary has something to do."""

from __future__ import annotations

import math


class BoundarySchedule:
    """From when on boundaries are looked at; the monitor passes all others by.

    To ask each part at each boundary whether it has something to do was one of the dearest things
    that we did in an ordinary step, because what a step touches has left the caches since the last
    one. So the parts say it beforehand, here.

    Attributes:
        step: steps done.
        time: `time.monotonic()`; whichever comes first.
    """

    __slots__ = ("step", "time")

    def __init__(self) -> None:
        self.step = 0.0
        self.time = math.inf

    def ask(self) -> None:
        """The next boundary is to be looked at. A signal's handler may call this."""
        self.step = 0.0
