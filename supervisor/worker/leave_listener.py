"""Ends the process at a boundary when somebody has asked for it."""

from __future__ import annotations

import math

from supervisor.worker.checkpoints.checkpoint_listener import CheckpointListener
from supervisor.worker.core.part import Part
from supervisor.worker.core.process_signs import ExitRequest
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.judging.step_judge import StepJudge


class LeaveListener(Part):
    """The last of the listeners. If the run was interrupted, a healthy state is saved first."""

    name = "leaving"

    def __init__(
        self, context: WorkerContext, step_judge: StepJudge, checkpoints: CheckpointListener
    ) -> None:
        self._last_step = (
            math.inf
            if context.settings.stop_after_steps is None
            else context.settings.stop_after_steps
        )
        self._schedule = context.schedule
        self._step_judge = step_judge
        self._checkpoints = checkpoints
        self._saving = context.breakers(checkpoints.name)
        self._judging = context.breakers("judging")
        self._health = context.health

    def next_boundary(self, step: int) -> tuple[float, float]:
        return self._last_step, math.inf

    def at_boundary(self, step: int) -> None:
        if step >= max(1, self._last_step) and self._schedule.leave is None:
            self._schedule.leave = ("completed", f"stop_after_steps is {self._last_step}")
        if self._schedule.leave is None:
            return
        (note, reason), self._schedule.leave = self._schedule.leave, None
        with self._judging:
            self._step_judge.judge_waiting()
        if step > 0 and note in ("interrupted", "mistake") and self._saving.is_on:
            with self._saving:  # whatever happens, the process ends
                if not self._health.in_trouble(step):
                    self._checkpoints.save_now(step, reason, wait=True)
        raise ExitRequest(note, reason)
