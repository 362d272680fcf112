"""The first step after a resume, beside the same step of the attempt that was killed."""

from __future__ import annotations

import math

from supervisor.codes import Found, Warned
from supervisor.errors import RunDirectoryError
from supervisor.events.state_events import StateFound, WarningEvent
from supervisor.storage.journal.journal import Journal
from supervisor.storage.steps.flight_recorder import LOSS_SEEN, FlightReader, FlightRecorder
from supervisor.worker.ground.boundary_listener import ALWAYS, BoundaryListener


class FirstStep(BoundaryListener):
    """Compares the loss of the first step that is trained again with the recorded one.

    The killed attempt usually came past its newest checkpoint: its next step then saw the same
    weights, the same batch and the same random numbers, so its loss must be the same to the bit
    (REQUIREMENTS K8). Nothing is computed for it.

    Args:
        journal: gets what came of it.
        recorder: of this rank.
    """

    name = "first step"

    def __init__(self, journal: Journal, recorder: FlightRecorder) -> None:
        self._journal = journal
        self._recorder = recorder
        self._step = self._recorded_row = self._own_row = -1

    def expect(self, step: int, recorded_row: int) -> None:
        """Called by a resume that must lead to the same loss.

        Args:
            step: the step that is trained first.
            recorded_row: where the recorder stood when the checkpoint was made.
        """
        self._step, self._recorded_row = step, recorded_row
        self._own_row = self._recorder.rows

    def next_look(self, step: int) -> tuple[float, float]:
        return ALWAYS if self._step >= 0 else super().next_look(step)

    def at_boundary(self, step: int) -> None:
        """Compares once, at the boundary after the step: `state_found` in the journal if the losses
        are equal, `warning` if not; nothing if one of the two is not known."""
        if self._step >= 0:
            self._compare()
            self._step = -1

    def _compare(self) -> None:
        try:
            with FlightReader(self._recorder.path) as reader:
                recorded = self._loss(reader, self._recorded_row)
                own = self._loss(reader, self._own_row)
        except (OSError, RunDirectoryError):
            return
        if self._recorded_row >= self._own_row or recorded is None or own is None:
            return
        if recorded == own:
            self._journal.write(
                StateFound(
                    step=self._step, found=Found.RECORDED_LOSS, loss=own, recorded_loss=recorded
                )
            )
            return
        self._journal.write(
            WarningEvent(
                step=self._step,
                found=Warned.ANOTHER_LOSS,
                loss=own,
                recorded_loss=recorded,
                message=f"the first step after the resume has the loss {own!r}, before the kill "
                f"it was {recorded!r}: `supervisor verify` finds what is not the same",
            )
        )

    def _loss(self, reader: FlightReader, row: int) -> float | None:
        found = reader.read(row, row + 1)
        if not len(found) or int(found["step"][0]) != self._step:
            return None
        loss = float(found["loss"][0])
        return loss if int(found["flags"][0]) & LOSS_SEEN and math.isfinite(loss) else None
