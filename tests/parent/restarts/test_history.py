from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.parent.restarts.history import first_made
from supervisor.records import StepRecord
from supervisor.storage.steps.flight_recorder import FlightRecorder


@pytest.mark.parametrize(
    ("attempt", "step", "time"),
    [(1, 3, 3.0), (2, 3, 101.0), (2, 1, 100.0), (2, 90, None), (1, 90, None), (3, 0, None)],
)
def test_the_moment_of_a_step_is_found_in_its_own_attempt(
    tmp_path: Path, attempt: int, step: int, time: float | None
) -> None:
    path = tmp_path / "rank_0.steps"
    for number, first, last, began in ((1, 0, 7, 0.0), (2, 2, 6, 100.0)):
        recorder = FlightRecorder(path, number)
        for made in range(first, last):
            record = StepRecord(step=made, loss=1.0, loss_seen=True)
            recorder.append(record, time=began + made - first)
        recorder.close()

    assert first_made(path, attempt, step) == time


def test_a_flight_recorder_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert first_made(tmp_path / "rank_0.steps", 1, 0) is None
