"""When the next boundary has something to do."""

from __future__ import annotations

import math


class Agenda:
    """From when on boundaries are looked at; the monitor passes all others by.

    A boundary that asked each part whether it has something to do cost a step more than anything
    else of ours that is not judging: every object that a step touches has left the caches since
    the last one. So the parts say it beforehand, here.

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
