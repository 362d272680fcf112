from __future__ import annotations

import itertools
from pathlib import Path

from supervisor.events.parsing import parse_event
from supervisor.records import StepRecord
from supervisor.storage.cases.case_advisor import CaseMemory
from supervisor.storage.cases.case_filing import cases_of_run, file_cases
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.journal.journal import JournalMerger
from supervisor.storage.run.run_state import RunState, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder


def run_with(folder: Path, *events: dict[str, object]) -> RunDirectory:
    rundir = RunDirectory(folder / "run")
    save_run_state(rundir, RunState(script="code/train.py"))
    clock = itertools.count(1_700_000_000)
    with JournalMerger(rundir, clock=lambda: float(next(clock))) as journal:
        for event in events:
            journal.write(parse_event(event))
    recorder = FlightRecorder(rundir.steps(0), 1)
    recorder.append(StepRecord(step=0, loss_scale=1024.0), time=0.0)
    recorder.close()
    return rundir


def crash(cause: str, last_step: int) -> dict[str, object]:
    return {"kind": "worker_exited", "step": last_step, "cause": cause, "last_step": last_step}


SPIKE = [
    {"kind": "alert", "step": 10, "detector": "of long ago"},
    {"kind": "alert", "step": 199, "detector": "gradient_norm"},
    {"kind": "alert", "step": 200, "detector": "loss_spike"},
    {"kind": "risk", "step": 200, "onset_step": 199},
    {
        "kind": "action",
        "step": 200,
        "name": "rollback",
        "cause": "spike",
        "outcome": "applied",
    },
]


def test_a_verified_treatment_is_a_case_with_its_outcome(tmp_path: Path) -> None:
    verdict = {
        "kind": "action",
        "step": 250,
        "name": "rollback",
        "cause": None,
        "outcome": "helped",
        "applied_at": 200,
    }
    rundir = run_with(tmp_path, *SPIKE, verdict)

    (case,) = cases_of_run(rundir)

    assert (case.cause, case.treatment, case.outcome) == ("spike", "rollback", "helped")
    assert (case.script, case.run) == ("train.py", str(rundir.root))
    assert case.signature == {
        "cause": "spike",
        "shape": "sudden",
        "detector": "gradient_norm",
        "precision": "scaled",
        "phase": "early",
    }


def test_a_crash_that_a_restart_overcame_is_a_case_that_helped(tmp_path: Path) -> None:
    rundir = run_with(
        tmp_path,
        crash("out_of_memory", 40),
        {"kind": "restart", "lr_factor": 1.0, "skip_steps": []},
        crash("completed", 90),
    )

    cases = cases_of_run(rundir)

    assert [(c.cause, c.treatment, c.outcome) for c in cases] == [
        ("out_of_memory", "restart", "helped")
    ]
    assert cases[0].signature["shape"] == "none"


def test_a_crash_that_came_again_is_a_case_that_failed(tmp_path: Path) -> None:
    rundir = run_with(
        tmp_path,
        crash("nonfinite", 40),
        {"kind": "restart", "lr_factor": 0.5, "skip_steps": []},
        crash("nonfinite", 40),
        {"kind": "restart", "lr_factor": 0.5, "skip_steps": [41]},
        crash("nonfinite", 41),
        {"kind": "gave_up"},
    )

    cases = cases_of_run(rundir)

    assert [(case.treatment, case.outcome) for case in cases] == [
        ("restart_with_lower_lr", "failed"),
        ("restart_skipping_steps", "failed"),
        ("none", "failed"),
    ]


def test_a_person_who_ends_a_run_makes_no_case(tmp_path: Path) -> None:
    rundir = run_with(tmp_path, crash("interrupted", 40), crash("completed", 90))

    assert cases_of_run(rundir) == []


def test_a_run_is_filed_once_however_often_it_ends(tmp_path: Path) -> None:
    library = CaseLibrary(tmp_path / "cases.sqlite")
    rundir = run_with(
        tmp_path, crash("hang", 40), {"kind": "restart", "lr_factor": 1.0}, crash("completed", 90)
    )

    filed = [file_cases(rundir, library), file_cases(rundir, library)]

    assert filed == [1, 0]
    memory = CaseMemory(library.all())
    assert list(memory.treatments(library.all()[0].signature)) == ["restart"]
