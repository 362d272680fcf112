"""The losses of steps that are trained again, beside the recorded ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.actions.controls import Controls
from supervisor.codes import Exactness
from supervisor.events.event import JournalEvent
from supervisor.events.state_events import Resumed, StateFound, WarningEvent
from supervisor.records import StepRecord
from supervisor.storage.journal.journal import SilentJournal
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.worker.core.part import Arrived
from supervisor.worker.step_record.recorded_steps import RecordedSteps

FIRST = 10
SAID = Resumed(
    from_step=FIRST, exactness=Exactness.EXACT, reason="", order="", replayed_steps=10,
    batches_left_out=0,
)  # fmt: skip


class Told(SilentJournal):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[JournalEvent] = []

    def write(self, event: JournalEvent) -> bool:
        self.events.append(event)
        return True


def compared(
    folder: Path,
    recorded: Sequence[float],
    again: Sequence[float],
    controls: Controls,
) -> list[JournalEvent]:
    """What the journal gets where `again` is trained behind a kill, step after step."""

    def append(recorder: FlightRecorder, attempt: int, number: int, loss: float) -> None:
        record = StepRecord(step=FIRST + number, loss=loss, loss_seen=True)
        recorder.append(record, time=1.0 + attempt)

    killed = FlightRecorder(folder / "steps", 1)
    for number, loss in enumerate(recorded):
        append(killed, 0, number, loss)
    killed.close()
    recorder, told = FlightRecorder(folder / "steps", 2), Told()
    context: Any = SimpleNamespace(journal=told, controls=controls)
    steps = RecordedSteps(context, recorder)
    steps.goes_live(Arrived(step=FIRST, path=folder, state={}, meta={}, said=SAID, is_exact=True))
    for number, loss in enumerate(again):
        append(recorder, 1, number, loss)
        steps.at_boundary(FIRST + number + 1)
    recorder.close()
    return told.events


def test_steps_with_the_same_losses_are_told_once(tmp_path: Path) -> None:
    (found,) = compared(tmp_path, [0.5, 0.25], [0.5, 0.25, 0.125], Controls())

    assert isinstance(found, StateFound)
    assert (found.step, found.loss, found.recorded_loss) == (FIRST, 0.5, 0.5)


def test_the_first_loss_that_differs_takes_exact_back(tmp_path: Path) -> None:
    _, warning, resumed = compared(tmp_path, [0.5, 0.25, 0.1], [0.5, 0.75, 0.2], Controls())

    assert isinstance(warning, WarningEvent)
    assert (warning.step, warning.loss, warning.recorded_loss) == (FIRST + 1, 0.75, 0.25)
    assert isinstance(resumed, Resumed)
    assert (resumed.from_step, resumed.exactness) == (FIRST, Exactness.APPROXIMATE)


@pytest.mark.parametrize(
    ("recorded", "controls"),
    [([0.5, math.nan, 0.1], Controls()), ([0.5, 0.5, 0.1], Controls(lr_factor=0.5))],
    ids=["not finite", "treated"],
)
def test_behind_trouble_or_a_treatment_nothing_is_compared(
    tmp_path: Path, recorded: list[float], controls: Controls
) -> None:
    found = compared(tmp_path, recorded, [0.5, 0.75, 0.2], controls)

    assert [type(event) for event in found] == [StateFound]
