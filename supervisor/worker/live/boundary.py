"""What happens between two steps, when the state is whole."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from supervisor.settings import RunSettings
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.capture.state_digests import StateDigests
from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.user_frames import user_frames
from supervisor.worker.process.exit_request import ExitRequest
from supervisor.worker.treatment.dispatcher import Dispatcher

if TYPE_CHECKING:
    from supervisor.worker.inspection.experiment import Experiment
    from supervisor.worker.replay.first_step import FirstStep

MIN_SNAPSHOT_STEPS = 10
MAX_SNAPSHOT_STEPS = 50
"""Not below the margin of a rollback, which would pass over the youngest two otherwise: at one copy
in 5 steps one rollback in ten went back 100 to 300 steps, at 10 to 50 none more than 60."""
SNAPSHOT_SHARE = 0.25
"""Of `checkpoint.max_overhead`; the rest is for checkpoints, which are rarer and cost more."""

PAUSE = 3.0
"""Steps that take more than so many usual ones (an evaluation came between) count as no more."""

FRESH = 0.3
"""Share of the steps since the last look in what is known of their length: with `PAUSE`, an
evaluation between two looks makes them seem six tenths longer at most."""


class Boundary:
    """Called at each boundary for which the schedule asks; see `Monitor`.

    Attributes:
        leave: set from outside (a signal, an action), with `BoundarySchedule.ask` behind it:
            ("interrupted"|"restart"|"stop", reason).
        only_watches: this is one rank of several, of which nothing is saved.
        first_step: set by a resume; looked at once, when its step is done.
        trail, experiment: when set, every boundary is looked at.
    """

    def __init__(
        self,
        *,
        settings: RunSettings,
        boundaries: BoundarySchedule,
        state: TrainingState,
        held: UserTensors,
        snapshots: SnapshotRing,
        checkpointer: Checkpointer,
        dispatcher: Dispatcher,
        tape_offset: Callable[[], int],
        pure_loading: Callable[[], list[int]],
        begin_files: Callable[[], int],
        steps_recorded: Callable[[], int],
        grads_matter: Callable[[], bool],
        controls_state: Callable[[], dict[str, Any]],
        loss_under_way: Callable[[], float | None],
        hook_state: Callable[[], str],
    ) -> None:
        self.leave: tuple[str, str] | None = None
        self.only_watches = False
        self.trail: StateDigests | None = None
        self.experiment: Experiment | None = None
        self.first_step: FirstStep | None = None
        self._settings = settings
        self._boundaries = boundaries
        self._state = state
        self._held = held
        self._snapshots = snapshots
        self._checkpointer = checkpointer
        self._dispatcher = dispatcher
        self._tape_offset = tape_offset
        self._pure_loading = pure_loading
        self._begin_files = begin_files
        self._steps_recorded = steps_recorded
        self._grads_matter = grads_matter
        self._controls_state = controls_state
        self._loss_under_way = loss_under_way
        self._hook_state = hook_state
        self._next_snapshot = 1.0 if settings.snapshot.enabled else math.inf
        last = settings.stop_after_steps
        self._last_step = math.inf if last is None else last
        self._snapshot_cost_s = 0.0
        self._step_s = 0.0
        self._looked_at = (0, 0.0)
        self._first = True

    def __call__(self, step: int) -> None:
        """Called with the number of steps done.

        Raises:
            WorkerLeaves: a person, the parent or a treatment wants this process to end.
        """
        now = time.monotonic()
        self._time_steps(step, now)
        self._checkpointer.measure(step, now)
        if self.first_step is not None:
            first, self.first_step = self.first_step, None
            first.compare()
        if self._first:
            self._first = False
            self._held.begin(user_frames())
        dispatcher = self._dispatcher
        if dispatcher.pending:
            dispatcher.at_boundary(step)
        if self.trail is not None:
            self.trail.write(step)
        if self.experiment is not None:
            self.experiment.at_boundary(step)
        if step == 0:
            self._leave_if_asked(step)
            return
        if self.leave is None or self.leave[0] != "restart":  # its state is to be left behind
            self._look_after_state(step)
        if step >= self._last_step and self.leave is None:
            self.leave = ("completed", f"stop_after_steps is {self._last_step}")
        if self.leave is not None:
            self._leave_if_asked(step)
        self._plan(step)

    def _time_steps(self, step: int, now: float) -> None:
        last_step, last_time = self._looked_at
        self._looked_at = (step, now)
        if last_time and step > last_step:
            took, usual = (now - last_time) / (step - last_step), self._step_s
            self._step_s = usual + FRESH * (min(took, PAUSE * usual) - usual) if usual else took

    def _look_after_state(self, step: int) -> None:
        dispatcher = self._dispatcher
        lines = dispatcher.pipeline.lines
        if self.only_watches:
            dispatcher.wants_checkpoint = ""
            return
        wanted = dispatcher.wants_checkpoint
        if step >= self._next_snapshot and not lines.is_warning(dispatcher.risk):
            self._take_snapshot(step)
        in_alarm = lines.is_alarm(dispatcher.risk)
        due = wanted or (not in_alarm and self._checkpointer.is_due(step))
        if due and self._checkpointer.is_free(step):
            dispatcher.wants_checkpoint = ""
            self.save(step, wanted or "interval", wait=False)
        self._checkpointer.healthy_at(step, dispatcher.last_trouble_step)

    def _plan(self, step: int) -> None:
        """Says which boundary is the next with something to do."""
        boundaries, dispatcher = self._boundaries, self._dispatcher
        save_step, boundaries.time = self._checkpointer.next_look(step)
        boundaries.step = min(self._next_snapshot, self._last_step, save_step)
        watched = self.trail is not None or self.experiment is not None
        # A signal may have come, or a step that waited been judged, after its place above.
        if watched or dispatcher.pending or dispatcher.wants_checkpoint or self.leave is not None:
            boundaries.ask()

    def before_first_update(self) -> None:
        """Keeps the untrained state: the optimizer is known, nothing was updated yet."""
        if self._first:  # no forward was seen before this update
            self._first = False
            self._held.begin(user_frames())
        if self._settings.snapshot.enabled and not self.only_watches:
            self._take_snapshot(0)

    def continue_at(self, step: int, held: set[str]) -> None:
        """The state of `step` was put back: the rest of this boundary is done.

        Args:
            step: steps done.
            held: paths of the variables that the checkpoint held.
        """
        self._first = False
        self._held.begin(user_frames(), but=held)
        self._next_snapshot = step + 1 if self._settings.snapshot.enabled else math.inf
        if self.trail is not None:
            self.trail.write(step)
        if self.experiment is not None:
            self.experiment.at_boundary(step)

    def save(self, step: int, reason: str, *, wait: bool) -> float:
        """Saves the state of this boundary; returns the seconds the training stood still."""
        state, meta = self.whole_state()
        meta["script_files"] = self._begin_files()
        pipeline = self._dispatcher.pipeline.state_dict()
        return self._checkpointer.save(
            step, state, meta, reason, pipeline=pipeline, wait=wait, usual_step_s=self._step_s
        )

    def whole_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns what a checkpoint of this boundary holds, live, and what its manifest needs."""
        self._dispatcher.judge_waiting()
        frames = user_frames()
        held = self._held.find(frames)
        state = self._state.capture(held=held, include_grads=self._grads_matter())
        meta = {
            "tape_offset": self._tape_offset(),
            "pure_loading": self._pure_loading(),
            "steps_recorded": self._steps_recorded(),
            "controls": self._controls_state(),
            "loss_under_way": self._loss_under_way(),
            "held_left_out": self._held.left_out,
            "hook_state": self._hook_state(),
            "risk": self._dispatcher.risk,
        }
        return state, meta

    def _take_snapshot(self, step: int) -> None:
        started = time.perf_counter()
        state: Mapping[str, Any] = self._state.capture(held=self._held.lasting(), for_rollback=True)
        self._snapshots.take(step, state, {"pipeline_step": step})
        cost = time.perf_counter() - started
        fixed = self._settings.snapshot.every_steps
        if fixed is not None:
            self._next_snapshot = step + fixed
            return
        earlier = self._snapshot_cost_s or cost
        self._snapshot_cost_s = min(cost, 0.8 * earlier + 0.2 * cost)
        share = SNAPSHOT_SHARE * self._settings.checkpoint.max_overhead
        apart = self._snapshot_cost_s / (share * self._step_s) if self._step_s > 0.0 else 0.0
        self._next_snapshot = step + max(
            MIN_SNAPSHOT_STEPS, min(MAX_SNAPSHOT_STEPS, int(apart) + 1)
        )

    def _leave_if_asked(self, step: int) -> None:
        if self.leave is None:
            return
        note, reason = self.leave
        self.leave = None
        self._dispatcher.judge_waiting()
        in_order = not self.only_watches and not self._dispatcher.in_trouble(step)
        if step > 0 and note == "interrupted" and in_order:
            self.save(step, reason, wait=True)
        raise ExitRequest(note, reason)
