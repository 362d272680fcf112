"""The factors of the learning rate beside the flight recorder."""

from __future__ import annotations

from pathlib import Path

from supervisor.records import StepRecord
from supervisor.storage.steps.applied_rates import (
    AppliedRates,
    describe_rates,
    rates_path,
    read_rates,
)
from supervisor.storage.steps.flight_recorder import FlightRecorder


def write(path: Path, steps: dict[int, float], attempt: int = 1) -> None:
    recorder, rates = FlightRecorder(path, attempt), AppliedRates(path)
    for step, factor in steps.items():
        row = recorder.append(StepRecord(step=step), time=float(step))
        if factor != 1.0:
            rates.append(row, factor)
    recorder.close()
    rates.close()


def test_a_run_with_its_own_rates_has_no_file(tmp_path: Path) -> None:
    write(tmp_path / "s", dict.fromkeys(range(9), 1.0))

    assert not rates_path(tmp_path / "s").exists()
    assert describe_rates(tmp_path / "s") == ""


def test_a_rate_that_was_held_is_told_with_the_number_of_steps(tmp_path: Path) -> None:
    write(tmp_path / "s", {step: 0.1 if step >= 4 else 1.0 for step in range(10)})

    assert describe_rates(tmp_path / "s") == "learning rate held at x0.1 for 6 of 10 steps"


def test_of_a_step_that_was_made_again_the_last_time_counts(tmp_path: Path) -> None:
    write(tmp_path / "s", {0: 1.0, 1: 0.5, 2: 0.5})
    write(tmp_path / "s", {1: 1.0, 2: 0.25, 3: 0.5}, attempt=2)

    told = describe_rates(tmp_path / "s")

    assert told == "learning rate changed by x0.25 to x0.5 for 2 of 4 steps"


def test_a_torn_entry_is_left_out_and_cut_off(tmp_path: Path) -> None:
    write(tmp_path / "s", {0: 0.5})
    with rates_path(tmp_path / "s").open("ab") as file:
        file.write(b"torn")

    write(tmp_path / "s", {1: 0.25})

    assert read_rates(tmp_path / "s") == {0: 0.5, 1: 0.25}
