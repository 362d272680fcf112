"""Who asks that the state is checked at the next boundary, before the next snapshot is due."""

from __future__ import annotations

from collections import deque

from supervisor.worker.ground.boundary_schedule import BoundarySchedule

ENOUGH = 3
WINDOW = 100
"""Updates left out within so many steps are no longer the fault of single batches."""


class LookRequests:
    """An update that was left out may be the state's fault: the first one asks, and the third
    within a window, which is evidence against the state.

    Attributes:
        schedule: of boundaries.
        is_open: a look was asked for and not taken yet.
    """

    def __init__(self, schedule: BoundarySchedule) -> None:
        self.is_open = False
        self.schedule = schedule
        self._left_out: deque[int] = deque(maxlen=ENOUGH)

    def left_out(self, step: int) -> None:
        """The update of `step` was left out."""
        earlier = [other for other in self._left_out if 0 <= step - other < WINDOW]
        self._left_out = deque([*earlier, step], maxlen=ENOUGH)
        if len(self._left_out) in (1, ENOUGH):
            self.is_open = True
            self.schedule.ask()

    def ask(self) -> None:
        """The state is to be looked at before it is left behind."""
        self.is_open = True
        self.schedule.ask()

    @property
    def is_left_behind(self) -> bool:
        """Whether the process goes back to a checkpoint at this boundary."""
        return self.schedule.is_restarting

    def take(self) -> bool:
        """Returns whether a look was asked for, once."""
        was_open, self.is_open = self.is_open, False
        return was_open
