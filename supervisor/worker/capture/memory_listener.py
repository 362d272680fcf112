"""Gives our copies of the state back when memory becomes short, and says how many there will be."""

from __future__ import annotations

import math
import time

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.held_memory import HeldMemory, leave_no_holes, return_to_system
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.retention import most_kept
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.core.part import Arrived
from supervisor.worker.core.turns import TimedPart, Turns

LOOK_S = 1.0
"""Between two looks at free memory, of some 0.1 to 1 ms each: a thousandth of the time at most."""


class MemoryListener(TimedPart):
    """Snapshots go first: a rollback can use the disk. Then the copy that a save is written from:
    where it has no room, checkpoints are written while the training waits. What will be held is
    said when the state has its full size, after the first update, and whenever it becomes less."""

    name = "memory"

    def __init__(
        self,
        settings: CheckpointSettings,
        *,
        turns: Turns,
        memory: HeldMemory,
        snapshots: SnapshotRing,
        checkpointer: Checkpointer,
        journal: Journal,
    ) -> None:
        super().__init__(turns)
        self._on_disk = most_kept(settings)
        self._memory = memory
        self._snapshots = snapshots
        self._checkpointer = checkpointer
        self._journal = journal
        self._from_step = 0
        self._next_at = 0.0
        self._fewest = math.inf

    def goes_live(self, arrived: Arrived) -> None:
        self._from_step = arrived.step

    def next_boundary(self, step: int) -> tuple[float, float]:
        return math.inf, self._next_at

    def is_due(self, step: int) -> bool:
        return time.monotonic() >= self._next_at

    def at_boundary(self, step: int) -> None:
        self._memory.has_trained = step > self._from_step
        if step == 0 or not self.has_turn(step):
            return
        self._next_at = time.monotonic() + LOOK_S
        self._snapshots.fit(step)
        self._checkpointer.fit()
        if self._memory.size:
            self._tell(step)
        if self._fewest == 0:
            leave_no_holes()
            return_to_system()

    def _tell(self, step: int) -> None:
        planned = self._memory.planned
        if planned >= self._fewest or (planned > 1 and self._fewest < math.inf):
            return
        self._fewest = planned
        message = f"memory: {self._memory.plan(self._on_disk)}"
        self._journal.write(StateFound(step=step, found=Found.MEMORY, message=message, aloud=True))
