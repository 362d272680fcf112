"""What can still speak loses nothing: the newest state is written when the process fails."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable

from supervisor.errors import CheckpointError
from supervisor.worker.checkpoints.checkpoint_listener import BoundaryCapture
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.checkpoints.checkpointer import Checkpointer
from supervisor.worker.checkpoints.rank_memory import KEPT_BEGAN, KEPT_INTERVAL, RankMemory
from supervisor.worker.core.boundaries import TimedPart
from supervisor.worker.core.budget import own_time
from supervisor.worker.core.part import Ended
from supervisor.worker.core.worker_context import WorkerContext


class ExitCheckpoint(TimedPart):
    """Keeps a healthy state in memory as often as the shared budget allows, and writes it at the
    end. The first copy of a large state waits for credit, and the first checkpoint comes before it.

    The memory is that of the last checkpoint. What was copied at a boundary stays right whatever
    happens behind it, an update that breaks off included.

    Of several ranks none can write for all when one has failed: each keeps its state in memory that
    outlives it, at the same steps, and the parent has all of them written
    (`worker/save_for_dead_ranks.py`).
    """

    name = "parting checkpoint"

    def __init__(
        self,
        context: WorkerContext,
        capture: BoundaryCapture,
        checkpointer: Checkpointer,
        of_rank: RankMemory | None,
        wants_state: Callable[[], bool] | None = None,
    ) -> None:
        """`wants_state`: asked whether one is to be kept soon; where it is given, one is also kept
        with each checkpoint."""
        super().__init__(context.turns)
        settings = context.settings.parting
        can_write = context.place.is_alone or of_rank is not None
        self._is_enabled = settings.enabled and can_write and not context.is_experiment
        self._keeps_saved = self._is_enabled and wants_state is not None
        self._wants_state = wants_state or (lambda: False)
        self._every = settings.every_steps
        is_timed = self._is_enabled and self._every is None
        self._member = context.budget.join(settings.max_overhead if is_timed else 0.0)
        self._capture = capture
        self._checkpointer = checkpointer
        self._script_files = capture.script_files
        self._replay_log = capture.replay_log
        self._schedule = context.schedule
        self._health = context.health
        self._progress = capture.progress
        self._warn = context.warn
        self._of_rank = of_rank
        self._rank_kept = -1

    def next_boundary(self, step: int) -> tuple[float, float]:
        if not self._is_enabled:
            return math.inf, math.inf
        if self._every is None:
            return math.inf, self._member.next_at(self._capture.cost_s)
        return float(step - step % self._every + self._every), math.inf

    def at_boundary(self, step: int) -> None:
        is_sick = self._health.in_trouble(step) or self._health.is_warning
        if is_sick and self._of_rank is not None:
            self._of_rank.forget()  # what trouble has followed is not to be gone back to
            self._rank_kept = -1
        if is_sick or self._schedule.is_restarting or self._schedule.repeats():
            return
        if step == 0 or not (self.has_turn(step) or self._follows_save(step)):
            return
        if self._of_rank is None and step == self._checkpointer.last_step:
            return
        started = own_time()
        captured = self._capture.take_for_later(step, "parting")
        if self._of_rank is None:
            self._checkpointer.keep(captured)
            self._script_files.expect_interval()
        else:
            self._keep_for_rank(self._of_rank, captured)
        if self._every is None:
            self._member.took(own_time() - started, time.monotonic())

    def _follows_save(self, step: int) -> bool:
        """A rank that comes back alone must not go back to before the last checkpoint: its own part
        of that one is on disk."""
        return self._keeps_saved and step == self._checkpointer.last_step

    def _keep_for_rank(self, memory: RankMemory, captured: CapturedCheckpoint) -> None:
        """What a killed process cannot do any more is done now: its replay log leaves the
        buffer."""
        interval, began = self._script_files.expect_interval()
        meta = {**captured.meta, KEPT_INTERVAL: interval, KEPT_BEGAN: began}
        if meta["tape_offset"] != -1:
            meta["tape_offset"] = self._replay_log.write_out_to_mark()
            if meta["tape_offset"] == -1:
                return  # a full disk may have room later
        try:
            memory.keep(dataclasses.replace(captured, meta=meta))
            self._rank_kept = captured.step
        except CheckpointError as error:
            self._is_enabled = False
            self._rank_kept = -1
            self._warn(
                f"the newest state is not kept in memory: {error}: a failure goes back to the last "
                "checkpoint",
                aloud=True,
            )

    @property
    def is_ready(self) -> bool:
        """Whether a state would be saved if the process ended now."""
        if self._of_rank is not None:
            return self._rank_kept > 0
        kept = self._checkpointer.kept
        return kept is not None and not self._objection(kept)

    def ends(self, how: Ended) -> None:
        """Written where the process ends before its time, behind the judgement of the last step."""
        kept = self._checkpointer.kept if how.parts else None
        if kept is None:
            return
        objection, meta = self._objection(kept), {}
        if not objection and kept.meta["tape_offset"] != -1:
            meta["tape_offset"] = offset = self._replay_log.write_out_to_mark()
            objection = "the tape could not be written" if offset == -1 else ""
        if objection:
            self._warn(
                f"the state of step {kept.step} is not saved as the process ends: {objection}"
            )
            return
        meta["script_files"] = self._script_files.expected_interval()
        self._checkpointer.write_kept(meta)

    def _objection(self, kept: CapturedCheckpoint) -> str:
        """Why a kept state must not be saved; empty if it may."""
        health, probe = self._health, self._progress.probe
        is_sick = health.in_trouble(self._progress.steps_done) or health.is_warning
        if is_sick or health.last_trouble_step >= kept.step - 1:
            return "the training was in trouble"
        with contextlib.suppress(RuntimeError):  # of a device that has failed
            probe.settle()
        if probe.loss_seen and not math.isfinite(probe.loss):
            return "the loss was not finite"
        return ""

    def is_due(self, step: int) -> bool:
        if not self._is_enabled:
            return False
        if self._of_rank is not None:
            if not self._checkpointer.may_save(step):
                return False  # a state that was abandoned has this place
        elif not self._checkpointer.is_free(step):
            return False  # the memory of the last save may be in use
        if self._wants_state():
            return True
        if self._every is not None:
            return step % self._every == 0
        return time.monotonic() >= self._member.next_at(self._capture.cost_s)
