"""What happens between two steps, when the state is whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from supervisor.worker.ground.boundary_listener import BoundaryListener
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier


class Boundary:
    """Calls its listeners in their order, at each boundary that one of them asked for.

    A listener asks with `next_look`, at the end of the boundary before. Whoever has something to do
    sooner (an action, a signal) calls `BoundarySchedule.ask`.

    Args:
        listeners: what is done at a boundary, in this order; `LeaveListener` comes last.
        schedule: keeps when the next boundary is needed; the monitor passes others by.
        barrier: guards each listener by itself: one that fails too often is left out.
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
                except BaseException as error:
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
        """Sets the schedule to the next boundary at which a listener has something to do."""
        next_step = next_time = math.inf
        for listener, part in self._listeners:
            if part.is_on:
                with part:
                    at_step, at_time = listener.next_look(step)
                    next_step, next_time = min(next_step, at_step), min(next_time, at_time)
        self.schedule.plan(next_step, next_time)
