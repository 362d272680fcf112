"""The curves of a page: the last time of each step, spikes kept, strict JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

from supervisor.events.run_events import WorkerExited
from supervisor.records import StepRecord
from supervisor.report.curves.curve_document import DrawnRun, as_script_data, curve_document
from supervisor.report.curves.curves import curves_of, read_curves
from supervisor.report.facts.run_data import load_material
from supervisor.report.write import document_of
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import AppliedRates
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.report import synthetic_run


def written(root: Path, *parts: range, observed: int = 1) -> RunDirectory:
    rundir = RunDirectory(root)
    rundir.make(rundir.steps(0).parent)
    for attempt, steps in enumerate(parts, 1):
        recorder = FlightRecorder(rundir.steps(0), attempt)
        for step in steps:
            loss = math.nan if step == 7 else 1000.0 if step == 5003 else step + attempt / 10
            values = {f"own_{place}": float(step * place) for place in range(observed)}
            record = StepRecord(step=step, loss=loss, lr=0.5, loss_seen=True, observed=values)
            recorder.append(record, time=float(step))
        recorder.close()
    return rundir


def test_a_step_that_was_repeated_counts_as_it_was_the_last_time(tmp_path: Path) -> None:
    rundir = written(tmp_path, range(30), range(20, 40))
    rates = AppliedRates(rundir.steps(0))
    rates.append(35, 0.5)
    rates.close()

    curves = read_curves(rundir, ["loss", "applied_lr", "own_0"])

    assert curves.names == ("loss", "lr", "applied_lr", "own_0")
    assert list(curves.by_name) == ["loss", "applied_lr", "own_0"]
    loss = curves.by_name["loss"]
    assert loss.steps.tolist() == [step for step in range(40) if step != 7]
    assert loss.values[19:21].tolist() == [20.2, 21.2]
    assert loss.nonfinite.tolist() == [7.0]
    assert curves.by_name["applied_lr"].values[25] == 0.25
    assert (curves.first_step, curves.last_step) == (0, 39)


def test_a_spike_stays_and_a_part_is_thinned_less(tmp_path: Path) -> None:
    rundir = written(tmp_path, range(9000))

    whole = read_curves(rundir, ["loss"]).by_name["loss"]
    part = read_curves(rundir, ["loss"], first_step=5000, last_step=5100).by_name["loss"]

    assert len(whole.steps) < 2000
    assert 5003.0 in whole.steps.tolist()
    assert part.steps.tolist() == list(range(5000, 5101))


def test_values_beyond_the_slots_of_a_row_are_found(tmp_path: Path) -> None:
    rundir = written(tmp_path, range(50), observed=20)

    curves = read_curves(rundir, ["own_19"])

    assert curves.by_name["own_19"].values.tolist() == [19.0 * step for step in range(50)]
    assert curves.names[-1] == "own_19"


def test_a_run_without_steps_has_no_curves(tmp_path: Path) -> None:
    assert read_curves(RunDirectory(tmp_path), ["loss"]).names == ()
    assert document_of([load_material(tmp_path)]) is None


def test_the_report_has_the_same_curves_as_the_live_page(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    run = load_material(root)
    of_report = curves_of(run)

    live = read_curves(RunDirectory(root), of_report.names)

    assert set(live.by_name) == set(of_report.by_name)
    for name, curve in of_report.by_name.items():
        assert live.by_name[name].values.tolist() == curve.values.tolist(), name


def test_a_document_is_strict_json_whatever_was_recorded(tmp_path: Path) -> None:
    rundir = written(tmp_path, range(10))
    curves = read_curves(rundir, ["loss"])
    usual = RiskLines.of(PolicySettings())
    hostile = DrawnRun(name="</script><b>", curves=curves, events=(), lines=usual)

    text = as_script_data(curve_document([hostile, hostile]))

    assert "<" not in text
    again = json.loads(text)
    assert again["runs"] == ["</script><b>"] * 2
    assert again["curves"]["loss"][0]["bad"] == [7]


def test_treatments_and_ends_are_marked_once_where_they_happened(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    run = load_material(root)
    document = document_of([run])
    assert document is not None

    ends = [event.last_step for event in run.of(WorkerExited)][:-1]
    found = [(mark["group"], mark["step"]) for mark in document["marks"]]

    assert len(found) == len(set(found))
    assert {group for group, _ in found} == {"treatment", "alert", "exit"}
    assert [step for group, step in found if group == "exit"] == ends
