"""The steps after a resume, beside the same steps of the attempt that was killed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from supervisor.codes import Exactness, Found, Warned
from supervisor.errors import RunDirectoryError
from supervisor.events.state_events import Resumed, StateFound, WarningEvent
from supervisor.storage.steps.flight_recorder import LOSS_SEEN, FlightReader, FlightRecorder
from supervisor.storage.steps.step_rows import UPDATE_SKIPPED
from supervisor.worker.core.part import ALWAYS, Arrived, Part, SavePoint
from supervisor.worker.core.worker_context import WorkerContext


class RecordedSteps(Part):
    """Compares the loss of each step that is trained again with the recorded one.

    The killed attempt usually came past its newest checkpoint: its next steps then saw the same
    weights, the same batches and the same random numbers, so their losses must be the same to the
    bit. Nothing is computed for it. Where one is not, the resume was not exact, and a second event
    `resumed` says so. It ends with the recorded steps, and where a treatment begins.

    Args:
        recorder: of this rank.
        is_retry: the attempt is an exact retry, which compares its steps itself.
    """

    name = "recorded steps"

    def __init__(
        self, context: WorkerContext, recorder: FlightRecorder, *, is_retry: bool = False
    ) -> None:
        self._is_retry = is_retry
        self._journal = context.journal
        self._recorder = recorder
        self._controls = context.controls
        self._reader: FlightReader | None = None
        self._said: Resumed | None = None
        self._recorded_row = self._own_row = self._end = 0
        self._is_first = True

    def save(self, point: SavePoint) -> None:
        point.note({"steps_recorded": self._recorder.rows})

    def goes_live(self, arrived: Arrived) -> None:
        """An exact resume must lead to the same losses."""
        if not arrived.is_exact or self._is_retry:
            return
        left_out = 0 if arrived.is_whole else 1  # the first may be trained in part only
        self._end = self._recorder.rows
        self._recorded_row = arrived.steps_recorded + left_out
        self._own_row = self._end + left_out
        self._said, self._reader = arrived.said, FlightReader(self._recorder.path)

    def next_boundary(self, step: int) -> tuple[float, float]:
        return ALWAYS if self._reader is not None else super().next_boundary(step)

    def at_boundary(self, step: int) -> None:
        """Compares the steps since the last boundary. The journal gets `state_found` if the first
        one is the same, `warning` and `resumed` at one that is not."""
        reader = self._reader
        while reader is not None and self._own_row < self._recorder.rows:
            if not self._is_same(reader):
                reader.close()
                reader = self._reader = None

    def _is_same(self, reader: FlightReader) -> bool:
        """Whether the next step is, and can be compared."""
        recorded, own = _row(reader, self._recorded_row), _row(reader, self._own_row)
        if recorded is None or own is None or self._recorded_row >= self._end:
            return False
        self._recorded_row += 1
        self._own_row += 1
        if recorded["step"] != own["step"]:
            return False
        if (recorded["flags"] | own["flags"]) & UPDATE_SKIPPED:
            return False
        if recorded["flags"] & own["flags"] & LOSS_SEEN:
            before, now = float(recorded["loss"]), float(own["loss"])
            if not math.isfinite(before + now):
                return False
            if before != now:
                self._tell(int(own["step"]), before, now)
                return False
            if self._is_first:
                self._is_first = False
                self._tell_first(int(own["step"]), now)
        return self._controls.is_neutral

    def _tell_first(self, step: int, loss: float) -> None:
        found = StateFound(step=step, found=Found.RECORDED_LOSS, loss=loss, recorded_loss=loss)
        self._journal.write(found)

    def _tell(self, step: int, before: float, now: float) -> None:
        told = f"step {step} has the loss {now!r}, before the kill it was {before!r}"
        self._journal.write(
            WarningEvent(
                step=step,
                found=Warned.ANOTHER_LOSS,
                loss=now,
                recorded_loss=before,
                message=f"the resume was not exact: {told}: `supervisor verify` finds what is not "
                "the same",
                aloud=True,
            )
        )
        self._take_back(step, told)

    def _take_back(self, step: int, why: str) -> None:
        if self._said is not None:
            self._journal.write(
                replace(self._said, step=step, exactness=Exactness.APPROXIMATE, reason=why)
            )


def _row(reader: FlightReader, row: int) -> np.void | None:
    try:
        found = reader.read(row, row + 1)
    except (OSError, RunDirectoryError):
        return None
    return found[0] if len(found) else None
