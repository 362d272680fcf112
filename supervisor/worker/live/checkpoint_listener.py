"""Saves checkpoints when they are due or asked for."""

from __future__ import annotations

import time

from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.core.part import ALWAYS
from supervisor.worker.core.turns import TimedPart, Turns
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.live.boundary_capture import BoundaryCapture
from supervisor.worker.live.step_times import StepTimes


class CheckpointListener(TimedPart):
    """No state is saved while the predictor raises an alarm, but one that was asked for."""

    name = "checkpoints"

    def __init__(
        self,
        *,
        turns: Turns,
        checkpointer: Checkpointer,
        capture: BoundaryCapture,
        schedule: BoundarySchedule,
        times: StepTimes,
        health: RunHealth,
    ) -> None:
        super().__init__(turns)
        self._checkpointer = checkpointer
        self._capture = capture
        self._schedule = schedule
        self._times = times
        self._health = health

    def at_boundary(self, step: int) -> None:
        checkpointer, schedule, health = self._checkpointer, self._schedule, self._health
        checkpointer.measure(step, self._times.now)
        if step == 0 or schedule.is_restarting:
            return
        wanted = schedule.checkpoint_reason
        due = wanted or (not health.is_alarm and self.has_turn(step))
        if due and not wanted and self._turns.are_own and self._capture.puts_off():
            checkpointer.put_off()
        elif due and checkpointer.may_save(step):
            schedule.checkpoint_reason = ""
            self.save_now(step, wanted or "interval", wait=False)
        checkpointer.healthy_at(step, health.last_trouble_step)

    def is_due(self, step: int) -> bool:
        return self._checkpointer.is_due(step)

    def next_boundary(self, step: int) -> tuple[float, float]:
        return ALWAYS if self._schedule.checkpoint_reason else self._checkpointer.next_look(step)

    def save_now(self, step: int, reason: str, *, wait: bool) -> float:
        """Saves the state of this boundary; returns the seconds the training stood still."""
        started = time.perf_counter()
        captured = self._capture.take(step, reason)
        return self._checkpointer.save(
            captured,
            wait=wait,
            usual_step_s=self._times.usual_s,
            gathered_in_s=time.perf_counter() - started,
        )
