"""Steps of a run as CSV, read piece by piece."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from supervisor.analysis.backtest.trace import read_trace
from supervisor.cli.commands import step_export
from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import AppliedRates
from supervisor.storage.steps.flight_recorder import FlightRecorder


def record_of(step: int, attempt: int) -> StepRecord:
    observed = {f"value_{place}": float(step + place) for place in range(20)} if step % 3 else {}
    return StepRecord(
        step=step, loss=step + attempt / 10, lr=0.5, loss_seen=True, observed=observed
    )


def test_the_newest_of_repeated_steps_is_written_with_its_applied_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_export, "ROWS_AT_ONCE", 7)
    rundir = RunDirectory(tmp_path)
    rundir.make(rundir.steps(0).parent)
    for attempt, steps in ((1, range(40)), (2, range(25, 60))):
        recorder = FlightRecorder(rundir.steps(0), attempt)
        rates = AppliedRates(rundir.steps(0))
        for step in steps:
            row = recorder.append(record_of(step, attempt), time=float(step))
            if step == 30:
                rates.append(row, 0.1 * attempt)
        recorder.close()
        rates.close()

    count = step_export.write_csv(rundir, 0, tmp_path / "steps.csv")

    with open(tmp_path / "steps.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert count == len(lines) == 60
    assert [float(line["loss"]) for line in lines] == [
        step + (0.1 if step < 25 else 0.2) for step in range(60)
    ]
    assert [float(line["applied_lr"]) for line in lines if line["step"] in ("29", "30")] == [
        0.5,
        0.1,
    ]
    assert lines[3]["value_19"] == ""
    assert lines[4]["value_19"] == "23.0"
    again = list(read_trace(tmp_path / "steps.csv"))
    assert [record.step for record in again] == list(range(60))
    assert math.isnan(again[0].grad_norm)
    assert list(tmp_path.glob("*.part")) == []
