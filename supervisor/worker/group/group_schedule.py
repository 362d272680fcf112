"""When a boundary is looked at, where all ranks must look at the same one."""

from __future__ import annotations

import math
import time

from supervisor.worker.ground.boundary_schedule import BoundarySchedule


class GroupSchedule(BoundarySchedule):
    """What only this rank knows (its clock, a signal that it got) waits for the agreement.

    Attributes:
        wishes_to_leave: why somebody wants this process to end; empty if nobody does.
    """

    __slots__ = ("_planned", "wishes_to_leave")

    def __init__(self) -> None:
        super().__init__()
        self._planned = (0.0, math.inf)
        self.wishes_to_leave = ""

    def is_due(self, step: int) -> bool:
        """Whether this rank has planned something for the boundary of `step`, or before."""
        return step >= self._planned[0] or time.monotonic() >= self._planned[1]

    def agreed_to_leave(self) -> None:
        """All ranks end at the next boundary."""
        super().ask_to_leave("interrupted", self.wishes_to_leave or "SIGTERM")

    def ask_to_leave(self, note: str, reason: str) -> None:
        if note == "interrupted":
            self.wishes_to_leave = reason
        else:
            super().ask_to_leave(note, reason)

    @property
    def is_leaving(self) -> bool:
        return bool(self.wishes_to_leave) or super().is_leaving

    def plan(self, step: float, time: float) -> None:
        self._planned = (step, time)
        super().plan(math.inf, math.inf)
