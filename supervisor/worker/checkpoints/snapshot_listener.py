"""Copies the state in memory from time to time, for rollbacks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from supervisor.training_state.host_memory import HOST_MEMORY
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.uncollected import uncollected
from supervisor.worker.checkpoints.whole_state import WholeState
from supervisor.worker.core.boundaries import StepTimes, TimedPart
from supervisor.worker.core.budget import CHECKPOINTS, Share, own_time, usual_cost
from supervisor.worker.core.part import ALWAYS, Arrived
from supervisor.worker.core.worker_context import WorkerContext

MIN_STEPS = 10
EARLY = Share(0.01, allowance_s=0.1)
"""Of a young attempt's time: a rollback loses no more than a third of its steps then."""


class SnapshotCheck(Protocol):
    """What is asked of the check for corruption around a snapshot."""

    name: ClassVar[str]

    def check(self, step: int) -> bool: ...
    def checked(self, step: int, state: Mapping[str, Any]) -> None: ...


class SnapshotListener(TimedPart):
    """Takes a snapshot as often as its cost and that of the check for corruption before it allow,
    whatever the number of steps between; never while the predictor warns."""

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
        self._from_step = 0
        self._made_ahead = not self._is_enabled
        self._cost_s = self._spent_s = 0.0

    def before_first_update(self) -> None:
        """Keeps the untrained state."""
        if self._is_enabled:
            self._take(0)

    def goes_live(self, arrived: Arrived) -> None:
        self._from_step = arrived.step
        self._next = arrived.step + 1 if self._is_enabled else math.inf

    def next_boundary(self, step: int) -> tuple[float, float]:
        if not self._made_ahead:
            return ALWAYS
        return max(self._next, step + MIN_STEPS if self._snapshots.is_making else 0), math.inf

    def is_due(self, step: int) -> bool:
        return step >= self._next and not self._snapshots.is_making

    def at_boundary(self, step: int) -> None:
        schedule = self._turns.schedule
        if not self._made_ahead and step > self._from_step:
            self._made_ahead = True
            self._snapshots.make_ahead(step, self._whole.for_rollback()[0])
        if schedule.is_restarting or schedule.repeats():
            return
        if self.has_turn(step) and not self._health.is_warning:
            self._take(step)
        elif step >= max(self._next, self._next_look):
            self._next_look = step + self._apart(step)
            self._is_sound(step)

    def _is_sound(self, step: int) -> bool:
        if self._checking.is_on:
            with self._checking:
                return self._corruption.check(step)
        return True

    @uncollected()
    def _take(self, step: int) -> None:
        started = own_time()
        if not self._is_sound(step):
            self._next = step + 1
            return
        state, looks = self._whole.for_rollback()
        extras = {"pipeline_step": step, "held_look": looks}
        if self._snapshots.take(step, state, extras) and self._checking.is_on:
            with self._checking:
                self._corruption.checked(step, state)
        cost = own_time() - started + self._snapshots.device_s
        if told := HOST_MEMORY.news():
            self._warn(told)
        if self._every is not None:
            self._next = step + self._every
            return
        self._spent_s += cost
        self._cost_s = usual_cost(self._cost_s, cost)
        self._next = step + self._apart(step)

    def _apart(self, step: int) -> int:
        """Steps until the next one: as many as its share of the time allows, or half as many as
        there were in this attempt."""
        usual_s, made = self._times.usual_s or math.inf, step - self._from_step
        apart = self._share.apart_s(self._cost_s) / usual_s
        early = EARLY.from_s(self._spent_s + self._cost_s) / usual_s - made
        return max(MIN_STEPS, math.ceil(min(apart, max(made / 2, early))))
