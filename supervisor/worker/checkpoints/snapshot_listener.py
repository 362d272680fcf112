"""Copies the state in memory from time to time, for rollbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from supervisor.training_state.host_memory import HOST_MEMORY
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.uncollected import uncollected
from supervisor.worker.checkpoints.whole_state import WholeState
from supervisor.worker.core.boundaries import TimedPart
from supervisor.worker.core.budget import CHECKPOINTS, own_time
from supervisor.worker.core.part import ALWAYS, Arrived
from supervisor.worker.core.worker_context import WorkerContext

MIN_STEPS = 10


class SnapshotCheck(Protocol):
    """What is asked of the check for corruption around a snapshot."""

    name: ClassVar[str]

    def check(self, step: int) -> bool: ...
    def checked(self, step: int, state: Mapping[str, Any]) -> None: ...


class SnapshotListener(TimedPart):
    """Takes a snapshot as often as the shared budget allows, the check for corruption before it
    included, whatever the number of steps between. A young attempt takes one when it is half as
    long again, while there is credit: a rollback loses a third of its steps then. While the
    predictor warns, the state is checked and not copied."""

    name = "snapshots"

    def __init__(
        self,
        context: WorkerContext,
        whole: WholeState,
        snapshots: SnapshotRing,
        corruption: SnapshotCheck,
    ) -> None:
        super().__init__(context.turns)
        settings = context.settings
        self._corruption = corruption
        self._checking = context.breakers(corruption.name)
        self._is_enabled = settings.snapshot.enabled
        self._every = settings.snapshot.every_steps
        share = (1.0 - CHECKPOINTS) * settings.checkpoint.max_overhead
        is_timed = self._is_enabled and self._every is None
        self._member = context.budget.join(share if is_timed else 0.0)
        self._warn = context.warn
        self._whole = whole
        self._snapshots = snapshots
        self._health = context.health
        self._from_step = 0
        self._next = 1.0 if self._is_enabled else math.inf
        self._early = 1.0  # while there is credit
        self._made_ahead = not self._is_enabled

    def before_first_update(self) -> None:
        """Keeps the untrained state."""
        if self._is_enabled:
            self._take(0)

    def goes_live(self, arrived: Arrived) -> None:
        self._from_step = arrived.step
        self._next = self._early = arrived.step + 1 if self._is_enabled else math.inf

    def next_boundary(self, step: int) -> tuple[float, float]:
        if not self._made_ahead:
            return ALWAYS
        if self._snapshots.is_making:
            return step + MIN_STEPS, math.inf
        if step < self._next:
            return self._next, math.inf
        later = step + MIN_STEPS if self._health.is_warning else math.inf
        return self._early if step < self._early else later, self._at(step)

    def is_due(self, step: int) -> bool:
        if step < self._next or self._snapshots.is_making:
            return False
        return time.monotonic() >= self._at(step)

    def _at(self, step: int) -> float:
        """From when on one is due at `step`."""
        if self._every is not None:
            return 0.0
        is_early = step >= self._early and not self._health.is_warning
        return self._member.early_at if is_early else self._member.next_at()

    def at_boundary(self, step: int) -> None:
        schedule = self._turns.schedule
        if not self._made_ahead and step > self._from_step:
            self._made_ahead = True
            self._snapshots.make_ahead(step, self._whole.for_rollback()[0])
        if not (schedule.is_restarting or schedule.repeats()) and self.has_turn(step):
            self._take(step)

    @uncollected()
    def _take(self, step: int) -> None:
        started = own_time()
        device_s = 0.0
        is_sound = self._is_sound(step)
        if is_sound and not self._health.is_warning:
            self._copy(step)
            device_s = self._snapshots.device_s
            after = self._every or MIN_STEPS
            self._early = step + max(after, 0.5 * (step - self._from_step))
        else:  # the copy is made up for
            after = MIN_STEPS if is_sound else 1
            self._early = step + 1
        self._next = step + after
        if self._every is None:
            self._member.took(own_time() - started + device_s, time.monotonic())
        if told := HOST_MEMORY.news():
            self._warn(told)

    def _is_sound(self, step: int) -> bool:
        if self._checking.is_on:
            with self._checking:
                return self._corruption.check(step)
        return True

    def _copy(self, step: int) -> None:
        state, looks = self._whole.for_rollback()
        extras = {"pipeline_step": step, "held_look": looks}
        if self._snapshots.take(step, state, extras) and self._checking.is_on:
            with self._checking:
                self._corruption.checked(step, state)
