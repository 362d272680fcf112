"""Copies the state in memory from time to time, for rollbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from supervisor.training_state.device_copies import HOST_MEMORY
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.checkpoints.whole_state import WholeState
from supervisor.worker.core.boundaries import StepTimes, TimedPart
from supervisor.worker.core.budget import CHECKPOINTS, Share, usual_cost
from supervisor.worker.core.part import Arrived
from supervisor.worker.core.worker_context import WorkerContext

MIN_STEPS = 10
MAX_STEPS = 50
"""Not below the margin of a rollback, which would skip the two youngest copies otherwise, and often
have to go back to a far older one."""
MAX_STEPS_LATER = 100
MOST_LOST = 0.05
"""Of the steps so far: a run that is old enough loses no more by a rollback to a copy that is up to
`MAX_STEPS_LATER` steps older."""


class SnapshotCheck(Protocol):
    """What is asked of the check for corruption around a snapshot."""

    name: ClassVar[str]

    def check(self, step: int) -> bool: ...
    def checked(self, step: int, state: Mapping[str, Any]) -> None: ...


class SnapshotListener(TimedPart):
    """Takes a snapshot as often as its cost allows, never while the predictor warns. The state is
    checked for corruption before."""

    name = "snapshots"

    def __init__(
        self,
        context: WorkerContext,
        whole: WholeState,
        snapshots: SnapshotRing,
        times: StepTimes,
        corruption: SnapshotCheck,
    ) -> None:
        super().__init__(context.turns)
        self._corruption = corruption
        self._checking = context.breakers(corruption.name)
        self._is_enabled = context.settings.snapshot.enabled
        self._every = context.settings.snapshot.every_steps
        self._share = Share((1.0 - CHECKPOINTS) * context.settings.checkpoint.max_overhead)
        self._warn = context.warn
        self._whole = whole
        self._snapshots = snapshots
        self._times = times
        self._health = context.health
        self._next = 1.0 if self._is_enabled else math.inf
        self._next_look = 0.0
        self._cost_s = 0.0

    def before_first_update(self) -> None:
        """Keeps the untrained state."""
        if self._is_enabled:
            self._take(0)

    def goes_live(self, arrived: Arrived) -> None:
        self._next = arrived.step + 1 if self._is_enabled else math.inf

    def next_boundary(self, step: int) -> tuple[float, float]:
        return self._next, math.inf

    def is_due(self, step: int) -> bool:
        return step >= self._next

    def at_boundary(self, step: int) -> None:
        schedule = self._turns.schedule
        if schedule.is_restarting or schedule.repeats():
            return
        if self.has_turn(step) and not self._health.is_warning:
            self._take(step)
        elif step >= max(self._next, self._next_look):
            self._next_look = step + MIN_STEPS
            self._is_sound(step)

    def _is_sound(self, step: int) -> bool:
        if self._checking.is_on:
            with self._checking:
                return self._corruption.check(step)
        return True

    def _take(self, step: int) -> None:
        started = time.perf_counter()
        if not self._is_sound(step):
            self._next = step + 1
            return
        state, looks = self._whole.for_rollback()
        extras = {"pipeline_step": step, "held_look": looks}
        if self._snapshots.take(step, state, extras) and self._checking.is_on:
            with self._checking:
                self._corruption.checked(step, state)
        cost = time.perf_counter() - started + self._snapshots.device_s
        if told := HOST_MEMORY.news():
            self._warn(told)
        if self._every is not None:
            self._next = step + self._every
            return
        self._cost_s = usual_cost(self._cost_s, cost)
        usual = self._times.usual_s
        apart = self._share.apart_s(self._cost_s) / usual if usual > 0.0 else 0.0
        most = max(MAX_STEPS, min(MAX_STEPS_LATER, int(MOST_LOST * step)))
        self._next = step + max(MIN_STEPS, min(most, int(apart) + 1))
