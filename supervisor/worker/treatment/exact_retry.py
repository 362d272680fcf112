"""One exact retry before a treatment that cannot be undone for free: was it the machine?

The process ends and the next one goes back, exactly, to a checkpoint from before the trouble; it
computes the same steps again from the same data. What comes again to the bit is the training's own
doing, and the ladder goes on. What does not come again was done by the machine: nothing is treated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from supervisor.codes import Found, Warned
from supervisor.errors import RunDirectoryError
from supervisor.events.state_events import StateFound
from supervisor.records import Decision
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.steps.flight_recorder import FlightReader, FlightRecorder
from supervisor.worker.core.boundaries import CheckRequests
from supervisor.worker.core.part import Arrived, Part
from supervisor.worker.core.run_health import MAX_WAITING
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.treatment.action_runner import ActionRunner

COSTLY = frozenset({"rollback", "restart", "stop"})
"""Treatments that lose steps, or the run."""
MOST = 3
"""Retries in a run: one that answers them all with the same numbers has no fault of the machine."""
EQUAL = 3
"""Steps that must come again to the bit before the first that does not: a training that does not
repeat itself at all differs from the first one on."""
_COMPARED = ("loss", "grad_norm", "batch_signature")


class ExactRetry(Part):
    """Asks for a retry instead of a costly treatment, and tells in the next attempt what came of
    it.

    Possible where one process trains and unmodified scripts are resumed exactly.
    """

    name = "exact retry"

    def __init__(
        self,
        context: WorkerContext,
        ring: CheckpointRing,
        recorder: FlightRecorder,
        looks: CheckRequests,
        runner: ActionRunner,
    ) -> None:
        self._policy = context.policy
        self._order = context.order
        is_run_alone = context.place.is_alone and not context.is_experiment
        resumes = context.settings.fast_forward.enabled
        self._is_possible = is_run_alone and resumes and context.policy.exact_retry
        self._ring = ring
        self._recorder = recorder
        self._looks = looks
        self._runner = runner
        self._warn = context.warn
        self._until = context.order.retry_until
        self._is_exact = False
        self._first_row = self._own_row = 0

    def goes_live(self, arrived: Arrived) -> None:
        self._first_row, self._own_row = arrived.steps_recorded, self._recorder.rows
        self._is_exact = arrived.is_exact
        if self._until is not None and not arrived.is_exact:
            self._tell(self._until, "the resume was not exact, so nothing can be said")

    def instead(self, decision: Decision) -> Decision:
        """Returns what is done: the decision, or nothing, where a retry was asked for."""
        if COSTLY.isdisjoint(decision.actions) or decision.dry_run:
            return decision
        if self._until is not None:
            if decision.step <= self._until:
                self._came_again(decision.step)
            return decision
        start = self._start(decision)
        if start is None:
            return decision
        self._warn.write(
            StateFound(
                step=decision.step,
                found=Found.RETRY_ASKED,
                before_step=start.step,
                detail=f"{', '.join(decision.actions)} because of {decision.reason}",
            )
        )
        self._looks.schedule.ask_to_leave(
            "retry",
            f"step {start.step} to {decision.step} once more before {decision.actions[0]} "
            f"({decision.reason})",
        )
        self._looks.ask()  # what is proved to be corrupted is named all the same
        return replace(decision, actions=(), undo=())

    def next_boundary(self, step: int) -> tuple[float, float]:
        if self._until is None:
            return super().next_boundary(step)
        return self._until + MAX_WAITING + 1, super().next_boundary(step)[1]

    def at_boundary(self, step: int) -> None:
        """By now the steps of the retry are judged, those that waited included."""
        if self._until is not None and step > self._until + MAX_WAITING:
            self._did_not_come_again(self._until)

    # --- asking ------------------------------------------------------------------------------

    def _start(self, decision: Decision) -> Checkpoint | None:
        """Returns the checkpoint to go back to; None where a retry would prove nothing."""
        order = self._order
        is_plain = order.lr_factor == order.batch_factor == 1.0 and not order.fp32
        if not self._is_possible or order.retries >= MOST or not is_plain:
            return None
        if self._looks.schedule.is_leaving:
            return None
        last = decision.onset_step - self._policy.rollback_margin_steps
        fitting = [
            checkpoint
            for checkpoint in self._ring.checkpoints()
            # Snapshots are taken by the clock: a rollback in between would not come again.
            if self._runner.changed_at < checkpoint.step <= last
            and _leads_back_exactly(checkpoint.meta)
        ]
        return max(fitting, key=lambda checkpoint: checkpoint.step, default=None)

    # --- comparing ---------------------------------------------------------------------------

    def _came_again(self, step: int) -> None:
        self._until = None
        if not self._is_exact:
            return
        equal, compared = self._compare(step)
        if compared and equal == compared:
            self._tell(
                step,
                f"it came again, and all {compared} steps since the checkpoint to the bit: it is "
                "the data, the training, or a state that was corrupted before the checkpoint",
                Found.RETRY_REPEATED,
            )
        else:
            self._tell(step, "it came again, but with other numbers")

    def _did_not_come_again(self, until: int) -> None:
        self._until = None
        if not self._is_exact:
            return
        equal, compared = self._compare(until)
        if EQUAL <= equal < compared:
            self._warn(
                f"suspect hardware: step {self._step_of(equal)} came out otherwise when it was "
                f"computed again from the same state and data ({equal} steps before it were equal "
                f"to the bit), and the trouble of step {until} did not come again: nothing was "
                "treated; test the memory and the device before you trust them",
                aloud=True,
                found=Warned.SUSPECT_HARDWARE,
            )
        elif compared and equal == compared:
            self._tell(until, "all numbers came again, but this time they were not treated")
        else:
            self._tell(until, "it did not come again, but this training does not repeat itself")

    def _compare(self, until: int) -> tuple[int, int]:
        """Returns how many steps up to `until` are equal before the first that is not, and how many
        there are; (0, 0) if not all of them are recorded twice from the same batches."""
        try:
            with FlightReader(self._recorder.path) as reader:
                first = reader.read(self._first_row, self._own_row)
                own = reader.read(self._own_row)
        except (OSError, RunDirectoryError):
            return 0, 0
        first = first[(first["attempt"] == self._order.retry_of) & (first["step"] <= until)]
        own = own[own["step"] <= until]
        if not len(own) or [*first["step"]] != [*own["step"]]:
            return 0, 0
        self._steps = own["step"]
        equal = np.ones(len(own), dtype=bool)
        for name in _COMPARED:
            alike = first[name].view(np.uint64) == own[name].view(np.uint64)
            if name == "batch_signature" and not alike.all():
                return 0, 0
            equal &= alike
        return int(np.argmin(equal)) if not equal.all() else len(own), len(own)

    def _step_of(self, index: int) -> int:
        return int(self._steps[index])

    def _tell(self, step: int, what: str, found: Found = Found.RETRY_UNDECIDED) -> None:
        message = f"exact retry of step {step}: {what}: the ladder goes on"
        self._warn.write(StateFound(step=step, found=found, message=message, aloud=True))


def _leads_back_exactly(meta: Mapping[str, Any]) -> bool:
    """Whether the replay log tells how the script came to a checkpoint."""
    return int(meta.get("tape_offset", -1)) >= 0 and not meta.get("tape_lost")
