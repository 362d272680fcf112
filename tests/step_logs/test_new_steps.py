"""The rows that are new, and where earlier values stop being true."""

from __future__ import annotations

from pathlib import Path

from supervisor.codes import Cause, Severity
from supervisor.events.step_events import AlertEvent
from supervisor.records import StepRecord
from supervisor.step_logs.new_steps import NewSteps
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import AppliedRates
from supervisor.storage.steps.flight_recorder import FlightRecorder


def recorder_of(rundir: RunDirectory, attempt: int) -> FlightRecorder:
    rundir.make(rundir.steps(0).parent)
    return FlightRecorder(rundir.steps(0), attempt)


def append(recorder: FlightRecorder, steps: range, *, risk: float | None = 0.25) -> None:
    for step in steps:
        record = StepRecord(step=step, loss=float(step), lr=0.5, loss_seen=True)
        row = recorder.append(record, time=float(step))
        if risk is not None:
            recorder.mark_risk([row], risk)


def test_steps_wait_until_they_are_judged_and_the_last_ones_do_not(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    steps = NewSteps(rundir)
    assert list(steps.take()) == []
    recorder = recorder_of(rundir, 1)
    append(recorder, range(10))
    append(recorder, range(10, 20), risk=None)

    assert [new.step for new in steps.take()] == list(range(10))
    assert [new.step for new in steps.take()] == []
    late = list(steps.take(all_of_them=True))

    recorder.close()
    assert [new.step for new in late] == list(range(10, 20))
    assert "risk" not in late[0].values
    assert not any(new.begins_again for new in late)


def test_steps_that_are_never_judged_do_not_wait_for_ever(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    recorder = recorder_of(rundir, 1)
    append(recorder, range(200), risk=None)

    assert [new.step for new in NewSteps(rundir).take()] == list(range(136))
    recorder.close()


def test_a_rollback_and_a_restart_begin_again(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    recorder = recorder_of(rundir, 1)
    append(recorder, range(10))
    append(recorder, range(5, 12))
    recorder.close()
    recorder = recorder_of(rundir, 2)
    append(recorder, range(12, 15))
    recorder.close()
    rates = AppliedRates(rundir.steps(0))
    rates.append(12, 0.1)
    rates.close()

    found = list(NewSteps(rundir).take())

    assert [(new.row, new.step) for new in found if new.begins_again] == [(0, 0), (10, 5), (17, 12)]
    assert [new.row for new in found if "applied_lr" in new.values] == [12]
    assert found[12].values["applied_lr"] == 0.05
    assert found[-1].values["attempt"] == 2
    assert found[-1].values["risk"] == 0.25
    assert [new.row for new in NewSteps(rundir, 15).take()] == [15, 16, 17, 18, 19]


def test_each_mistake_of_the_script_is_given_once(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    recorder = recorder_of(rundir, 1)
    journal = Journal(rundir.journal, attempt=1, rank=0)
    steps = NewSteps(rundir)
    append(recorder, range(3))
    for kind, category in (("never_a_gradient", "mistake"), ("loss_spike", "loss")):
        journal.write(
            AlertEvent(
                step=2,
                detector="x",
                severity=Severity.HIGH,
                category=category,
                cause=Cause.OTHER,
                message="m",
                value=0.0,
                threshold=0.0,
                metadata={},
                alert_kind=kind,
            )
        )

    assert len(list(steps.take())) == 3
    found = steps.mistakes()

    recorder.close()
    assert [event.alert_kind for event in found] == ["never_a_gradient"]
    assert steps.mistakes() == []
