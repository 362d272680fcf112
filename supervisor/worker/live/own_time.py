"""What a rank does alone in a step: from the end of an update to the first backward behind it.

It waits for its batch there and runs its forward. What it waits for others falls into the backward
and the update, so a rank that is slow itself is told from those that wait for it. A forward that
gathers shards (FSDP2) waits, too: then slow ranks look less slow than they are.
"""

from __future__ import annotations

import statistics
import time

from supervisor.storage.steps.own_times import WINDOW_STEPS, OwnTimes


class OwnTime:
    """Called at each step; off for a training of one process.

    Args:
        times: where windows are written; None for nowhere.
    """

    def __init__(self, times: OwnTimes | None) -> None:
        self._times = times
        self._updated_at: float | None = None
        self._window: list[float] = []
        self._first_step = 0

    def backward_begins(self, step: int) -> None:
        """The first backward behind an update begins, that of `step`."""
        if self._times is None or self._updated_at is None:
            return
        first = step - step % WINDOW_STEPS
        if first != self._first_step:
            if len(self._window) == WINDOW_STEPS:  # all of them: ranks compare the same steps
                self._times.append(self._first_step, statistics.median(self._window))
            self._window.clear()
            self._first_step = first
        self._window.append(time.perf_counter() - self._updated_at)
        self._updated_at = None

    def update_ended(self) -> None:
        """An update was made."""
        if self._times is not None:
            self._updated_at = time.perf_counter()
