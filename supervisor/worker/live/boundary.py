"""What happens between two steps, when the state is whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from supervisor.worker.ground.boundary_listener import BoundaryListener
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier


class Boundary:
    """Calls its listeners in their order, at each boundary for which one of them has asked.

    Args:
        listeners: what is done, first things first; `LeaveListener` comes last.
        schedule: is filled in with when the next boundary is needed.
        barrier: has a part for each listener: one that fails too often is left out.
    """

    def __init__(
        self,
        listeners: Sequence[BoundaryListener],
        schedule: BoundarySchedule,
        barrier: ErrorBarrier,
    ) -> None:
        self.schedule = schedule
        self._listeners = [(listener, barrier(listener.name)) for listener in listeners]

    def at_boundary(self, step: int) -> None:
        """Called with the number of steps done.

        Raises:
            ExitRequest: a person, the parent or a treatment wants this process to end.
        """
        for listener, part in self._listeners:
            if part.is_on:
                try:
                    listener.at_boundary(step)
                except Exception as error:
                    part.caught(error)
        self._plan(step)

    def before_first_update(self) -> None:
        """See `BoundaryListener.before_first_update`."""
        for listener, part in self._listeners:
            if part.is_on:
                with part:
                    listener.before_first_update()

    def continue_at(self, step: int) -> None:
        """See `BoundaryListener.continue_at`."""
        for listener, part in self._listeners:
            with part:
                listener.continue_at(step)

    def _plan(self, step: int) -> None:
        """Says which boundary is the next with something to do."""
        next_step = next_time = math.inf
        for listener, part in self._listeners:
            if part.is_on:
                with part:
                    at_step, at_time = listener.next_look(step)
                    next_step, next_time = min(next_step, at_step), min(next_time, at_time)
        self.schedule.plan(next_step, next_time)
