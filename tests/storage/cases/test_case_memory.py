from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.records import Alert, Cause, CrashRisk, Severity, StepRecord
from supervisor.storage.cases.case_advisor import Case, CaseAdvisor, CaseMemory, load_memory
from supervisor.storage.cases.case_filing import crash_signature, keep_memory
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.run.rundir import RunDirectory
from tests.journals import event

ALERT = event("alert", step=118, detector="slow_divergence")
RISK = event("risk", step=120, onset_step=110)
SIGNATURE = crash_signature(
    [ALERT, RISK, event("action", step=125)], cause="divergence", precision="unscaled"
)


def case(treatment: str, outcome: str = "helped", **changes: str) -> Case:
    return Case(signature={**SIGNATURE, **changes}, treatment=treatment, outcome=outcome)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaseLibrary:
    monkeypatch.setenv("SUPERVISOR_CASES", str(tmp_path / "cases.sqlite"))
    return CaseLibrary()


def test_what_helped_most_in_similar_cases_comes_first() -> None:
    memory = CaseMemory(
        [
            case("cut_lr"),
            case("rollback"),
            case("rollback", phase="late"),
            case("tighten_clip", "failed"),
            case("reset_optimizer", "unknown"),
            case("fp32_fallback", cause="loss_scale"),
        ]
    )

    assert tuple(memory.treatments(SIGNATURE)) == ("rollback", "cut_lr")


def test_the_advisor_knows_trouble_by_the_signature_under_which_it_was_filed() -> None:
    advisor = CaseAdvisor(CaseMemory([replace(case("rollback"), id=7, run="runs/a")]))
    alert = Alert(
        detector="slow_divergence", severity=Severity.HIGH, category="loss", kind="rising",
        cause=Cause.DIVERGENCE, message="", step=118,
    )  # fmt: skip
    given = {}

    for step in range(100, 126):
        alarm = step >= 120
        risk = CrashRisk(
            step=step, probability=0.6 * alarm, cause=Cause.DIVERGENCE, warning=alarm,
            alarm=alarm, onset_step=110 if alarm else -1,
        )  # fmt: skip
        record = StepRecord(step=step)
        given[step] = advisor.update(record, [alert] if step == 118 else [], risk)

    assert given[119] == {}
    assert given[125] == {"rollback": "case 7 of runs/a"}
    other = CaseAdvisor(CaseMemory([case("rollback")]))
    other.load_state_dict(advisor.state_dict())
    assert other.state_dict() == advisor.state_dict()


def test_a_run_keeps_what_the_library_knew_when_it_began(
    library: CaseLibrary, tmp_path: Path
) -> None:
    library.add(case("rollback"))
    rundir = RunDirectory(tmp_path / "run")

    problem = keep_memory(rundir)
    library.add(case("cut_lr"))
    library.add(case("cut_lr"))

    assert problem is None
    assert tuple(load_memory(rundir).treatments(SIGNATURE)) == ("rollback",)


def test_a_missing_library_is_an_empty_one_and_is_not_made(
    library: CaseLibrary, tmp_path: Path
) -> None:
    assert keep_memory(RunDirectory(tmp_path / "run")) is None
    assert load_memory(RunDirectory(tmp_path / "run")).cases == ()
    assert not library.path.exists()


def test_a_damaged_or_locked_library_gives_no_advice_and_says_so(
    library: CaseLibrary, tmp_path: Path
) -> None:
    rundir = RunDirectory(tmp_path / "run")
    library.add(case("rollback"))
    other = sqlite3.connect(library.path)
    other.execute("BEGIN EXCLUSIVE")

    locked = keep_memory(rundir)
    other.close()
    library.path.write_bytes(b"no database, but long enough to be taken for the head of one" * 9)
    damaged = keep_memory(rundir)

    assert locked is not None
    assert "locked" in locked
    assert damaged is not None
    assert "not a database" in damaged
    assert load_memory(rundir).cases == ()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"colour": "red"}]'])
def test_a_damaged_memory_is_an_empty_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(text)

    assert load_memory(RunDirectory(tmp_path)).cases == ()
