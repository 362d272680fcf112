"""Checkpoints at a boundary: when, and all that they hold; given up where memory is short."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.held_memory import HeldMemory, leave_no_holes, return_to_system
from supervisor.storage.checkpoints.retention import most_kept
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.training_state.script_state.script_state import reach_of
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.uncollected import uncollected
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.checkpoints.checkpointer import Checkpointer
from supervisor.worker.core.boundaries import StepTimes, TimedPart
from supervisor.worker.core.budget import own_time
from supervisor.worker.core.part import ALWAYS, Arrived, SavePoint
from supervisor.worker.core.progress import Progress
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.script_state.user_frames import call_under_way, user_frames
from supervisor.worker.script_state.user_tensors import UserTensors


class BoundaryCapture:
    """The one place where a checkpoint of the training is put together; its state is live.

    Args:
        judge_waiting: judges the steps that wait; a treatment may be asked for.
        save: has all parts add what they save.
    """

    def __init__(
        self,
        *,
        judge_waiting: Callable[[], object],
        save: Callable[[SavePoint], None],
        held: UserTensors,
        replay_log: ReplayLogWriter,
        script_files: ScriptFiles,
        progress: Progress,
    ) -> None:
        self._judge_waiting = judge_waiting
        self._save = save
        self._held = held
        self.replay_log = replay_log
        self.script_files = script_files
        self.progress = progress
        self._cost_s: float | None = None

    @property
    def cost_s(self) -> float:
        """What the last one took to gather, of `own_time`; before it, what the first look at the
        script's variables took, which is less."""
        return self._held.first_look_s if self._cost_s is None else self._cost_s

    def puts_off(self) -> bool:
        """Whether a checkpoint that is due had better wait for a later boundary: the script keeps
        graphs across updates here, and will soon have none to keep."""
        graphs, steps = self.progress.graphs, self.progress.steps_done
        if not graphs.seen:
            return False
        return graphs.puts_off(self._held.find(user_frames(), call_under_way()), steps)

    def take(self, step: int, reason: str) -> CapturedCheckpoint:
        """Returns what is to be saved now; the script's files are kept from here on."""
        self._judge_waiting()
        point = self._point(for_later=False)
        point.note({"script_files": self.script_files.begin_interval()})
        return _captured(point, step, reason)

    def take_for_later(self, step: int, reason: str) -> CapturedCheckpoint:
        """Returns what may have to be saved when the process ends; its meta lacks `script_files`,
        and its place on the replay log is only marked."""
        self._judge_waiting()
        return _captured(self._point(for_later=True), step, reason)

    def state_and_meta(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a treatment is about to throw away; every step before is judged, and the windows of
        detectors and predictor are left out."""
        point = self._point(for_later=False)
        return point.state, point.meta

    @uncollected()
    def _point(self, *, for_later: bool) -> SavePoint:
        started = own_time()
        frames, call = user_frames(), call_under_way()
        reach = reach_of(frames, call)
        held = self._held.find(frames, call, reach)
        point = SavePoint(frames=frames, call=call, reach=reach, held=held, for_later=for_later)
        self._save(point)
        point.note({"tape_offset": self._replay_offset(for_later=for_later)})
        self._cost_s = own_time() - started
        return point

    def _replay_offset(self, *, for_later: bool) -> int:
        """Length of the replay log; -1 when it does not tell how the script came here. Behind all
        parts, which may have written to it."""
        if for_later:
            self.replay_log.mark()
            offset = self.replay_log.offset
        else:
            offset = self.replay_log.write_out()
        return offset if self.progress.can_replay and not self.replay_log.is_full else -1


def _captured(point: SavePoint, step: int, reason: str) -> CapturedCheckpoint:
    return CapturedCheckpoint(
        step=step, state=point.state, meta=point.meta, reason=reason, sections=point.sections
    )


class CheckpointListener(TimedPart):
    """No state is saved while the predictor raises an alarm, but one that was asked for."""

    name = "checkpoints"

    def __init__(
        self,
        context: WorkerContext,
        checkpointer: Checkpointer,
        capture: BoundaryCapture,
        times: StepTimes,
    ) -> None:
        super().__init__(context.turns)
        self._checkpointer = checkpointer
        self._capture = capture
        self._schedule = context.schedule
        self._times = times
        self._health = context.health

    def at_boundary(self, step: int) -> None:
        checkpointer, schedule, health = self._checkpointer, self._schedule, self._health
        checkpointer.measure(step, self._times.now)
        if step == 0 or schedule.is_restarting or schedule.repeats():
            return
        wanted = schedule.checkpoint_reason
        due = wanted or (not health.is_alarm and self.has_turn(step))
        if due and not wanted and self._turns.are_own and self._capture.puts_off():
            checkpointer.put_off()
        elif due and checkpointer.may_save(step) and not checkpointer.has_saved(step):
            schedule.checkpoint_reason = ""
            self.save_now(step, wanted or "interval", wait=False)
        checkpointer.healthy_at(step, health.last_trouble_step)

    def is_due(self, step: int) -> bool:
        return self._checkpointer.is_due(step)

    def next_boundary(self, step: int) -> tuple[float, float]:
        return ALWAYS if self._schedule.checkpoint_reason else self._checkpointer.next_look(step)

    def save_now(self, step: int, reason: str, *, wait: bool) -> float:
        """Saves the state of this boundary; returns the seconds the training stood still."""
        started = own_time()
        captured = self._capture.take(step, reason)
        return self._checkpointer.save(
            captured,
            wait=wait,
            usual_step_s=self._times.usual_s,
            gathered_in_s=own_time() - started,
        )


LOOK_S = 1.0
"""Between two looks at free memory, of some 0.1 to 1 ms each: a thousandth of the time at most."""


class MemoryListener(TimedPart):
    """Snapshots go first: a rollback can use the disk. Then the copy that a save is written from:
    where it has no room, checkpoints are written while the training waits. What will be held is
    said when the state has its full size, after the first update, and whenever it becomes less."""

    name = "memory"
    may_save = False

    def __init__(
        self,
        context: WorkerContext,
        memory: HeldMemory,
        snapshots: SnapshotRing,
        checkpointer: Checkpointer,
    ) -> None:
        super().__init__(context.turns)
        self._on_disk = most_kept(context.settings.checkpoint)
        self._memory = memory
        self._snapshots = snapshots
        self._checkpointer = checkpointer
        self._journal = context.group_journal
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
