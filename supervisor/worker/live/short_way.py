"""The way of an ordinary step through us: recorded, put on the tape, and left to wait."""

from __future__ import annotations

import time

from torch.optim import Optimizer

from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.tape import TapeWriter
from supervisor.worker.ground.calm_line import MAX_WAITING
from supervisor.worker.ground.step_probe import StepProbe
from supervisor.worker.treatment.clinic import Clinic
from supervisor.worker.treatment.update_controls import UpdateControls


class ShortWay:
    """Takes in steps of which nothing has to be decided before their update.

    Such a step has a loss and a gradient norm that are calm, no treatment is in force, and it is
    special in no way that a `StepRecord` has a field for. What `StepProbe`, `FlightRecorder`,
    `Clinic`, `UpdateControls` and `Monitor` do about any other step is done here in one function
    and with hardly an object: what counts is how many of ours a step touches, because the training
    has pushed all of them out of the caches (docs/architecture.md).
    """

    def __init__(
        self, *, recorder: FlightRecorder, tape: TapeWriter, clinic: Clinic, updates: UpdateControls
    ) -> None:
        self._recorder = recorder
        self._tape = tape
        self._clinic = clinic
        self._updates = updates
        self._controls = updates.controls

    def take(self, probe: StepProbe, lead: Optimizer, step: int) -> bool:
        """Called before the update, when all of the step was seen.

        Args:
            probe: what was seen; forgotten if the step is taken.
            lead: whose update it is. There is no scaler.
            step: its number.

        Returns:
            Whether the step is dealt with; if not, nothing has happened.
        """
        clinic, loss, grad_norm = self._clinic, probe.loss, probe.grad_norm
        calm, waiting = clinic.calm, clinic.waiting
        if (
            grad_norm is None
            or not (loss <= calm.loss_line and grad_norm <= calm.norm_line)
            or probe.batch_size != calm.batch_size
            or not probe.loss_seen
            or probe.observed
            or probe.others_trained
            or probe.begins_training
            or probe.announced
            or probe.is_in_environment
            or len(waiting) >= MAX_WAITING - 1
            or not self._controls.is_neutral
            or self._updates.skip_steps
        ):
            return False
        now = time.time()
        step_time_s = probe.pass_time(now)
        if step_time_s is None:
            return False
        lr = float(lead.param_groups[0]["lr"])
        calls = probe.backward_calls, probe.forward_calls, probe.signature
        values = (step, loss, grad_norm, lr, step_time_s, probe.batch_size, probe.memory_gib)
        waiting.append((values, self._recorder.append_values(values, now, calls)))
        self._tape.append_step(step, lr, *calls)
        probe.forget()
        return True
