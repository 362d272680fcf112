"""Saves checkpoints when they are due or asked for."""

from __future__ import annotations

from supervisor.pipeline import Pipeline
from supervisor.storage.checkpoints.section_files import PIPELINE
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.worker.capture.captured_checkpoint import CapturedCheckpoint
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.capture.whole_state import WholeState
from supervisor.worker.ground.boundary_listener import ALWAYS, BoundaryListener
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.live.step_times import StepTimes
from supervisor.worker.treatment.dispatcher import Dispatcher


class CheckpointListener(BoundaryListener):
    """No state is saved while the predictor raises an alarm, but one that was asked for."""

    name = "checkpoints"

    def __init__(
        self,
        *,
        checkpointer: Checkpointer,
        whole_state: WholeState,
        script_files: ScriptFiles,
        dispatcher: Dispatcher,
        pipeline: Pipeline,
        schedule: BoundarySchedule,
        times: StepTimes,
        health: RunHealth,
    ) -> None:
        self._checkpointer = checkpointer
        self._whole_state = whole_state
        self._script_files = script_files
        self._dispatcher = dispatcher
        self._pipeline = pipeline
        self._schedule = schedule
        self._times = times
        self._health = health

    def at_boundary(self, step: int) -> None:
        checkpointer, schedule, health = self._checkpointer, self._schedule, self._health
        checkpointer.measure(step, self._times.now)
        if step == 0 or schedule.is_restarting:
            return
        wanted = schedule.checkpoint_reason
        due = wanted or (not health.is_alarm and checkpointer.is_due(step))
        if due and checkpointer.is_free(step):
            schedule.checkpoint_reason = ""
            self.save(step, wanted or "interval", wait=False)
        checkpointer.healthy_at(step, health.last_trouble_step)

    def next_look(self, step: int) -> tuple[float, float]:
        return ALWAYS if self._schedule.checkpoint_reason else self._checkpointer.next_look(step)

    def save(self, step: int, reason: str, *, wait: bool) -> float:
        """Saves the state of this boundary; returns the seconds the training stood still."""
        self._dispatcher.judge_waiting()
        state, meta = self._whole_state.take()
        meta["script_files"] = self._script_files.begin_interval()
        captured = CapturedCheckpoint(
            step=step,
            state=state,
            meta=meta,
            reason=reason,
            sections={PIPELINE: self._pipeline.state_dict()},
        )
        return self._checkpointer.save(captured, wait=wait, usual_step_s=self._times.usual_s)
