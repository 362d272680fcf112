"""What a close look at the bad step adds to the table of replays."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.analysis.explain.finding import (
    StepFinding,
    exception_of,
    finding_of,
    first_of,
    refined,
)
from supervisor.analysis.explain.rules import Diagnosis
from supervisor.storage.run.exit_notes import ExitNote


def seen(sample: int | None = None, **where: Any) -> dict[str, Any]:
    texts = dict.fromkeys(("phase", "module", "operation", "kind", "cause", "fix"), "")
    return {
        "sample": sample,
        "sample_reason": "alone it makes the output non-finite",
        "sample_is_odd": False,
        "nonfinite": {"found": bool(where), **texts, **where},
    }


def diagnosis(cause: str) -> Diagnosis:
    return Diagnosis(root_cause=cause, confidence=0.6, because="")


def test_the_earliest_step_that_shows_something_gives_the_place() -> None:
    inspections = {
        59: seen(sample=1, phase="update", module="(optimizer)", kind="overflow"),
        60: seen(sample=3, phase="parameter", module="0.weight", kind="nonfinite_parameter"),
    }

    finding = finding_of(inspections, bad_steps=[60])

    assert (finding.place, finding.sample) == ("(optimizer)", 3)


@pytest.mark.parametrize(
    ("findings", "rank"),
    [
        ([StepFinding(phase="backward"), StepFinding(phase="loss"), StepFinding()], 1),
        ([StepFinding(phase="forward"), StepFinding(sample=3, sample_is_odd=True)], 1),
        ([StepFinding(phase="parameter"), StepFinding(phase="parameter")], 0),
        ([StepFinding(), StepFinding(phase="update")], 1),
        ([StepFinding(), StepFinding(phase="parameter")], 1),
    ],
)
def test_of_several_ranks_the_one_that_began_it_is_told(
    findings: list[StepFinding], rank: int
) -> None:
    assert first_of(dict(enumerate(findings))).rank == rank


def test_one_process_is_no_rank() -> None:
    assert first_of({0: StepFinding(sample=3)}) == StepFinding(sample=3)


@pytest.mark.parametrize("cause", ["data", "learning_rate", "unknown", "model_code"])
def test_an_operation_without_a_guard_is_the_codes_fault(cause: str) -> None:
    finding = StepFinding(phase="forward", module="pool", operation="div", kind="division_by_zero")

    found = refined(diagnosis(cause), finding, is_sudden=True)

    assert found.root_cause == "model_code"
    assert found.confidence >= 0.8


@pytest.mark.parametrize(
    ("finding", "is_sudden", "cause"),
    [
        (StepFinding(phase="forward", kind="log_of_zero", sample_is_odd=True), True, "data"),
        (StepFinding(phase="forward", kind="log_of_zero"), False, "learning_rate"),
        (StepFinding(phase="forward", kind="overflow"), True, "learning_rate"),
        (StepFinding(phase="loss", kind="log_of_zero"), True, "precision"),
        (StepFinding(phase="update", kind="division_by_zero"), True, "optimizer_state"),
    ],
)
def test_bad_data_growth_rounding_and_updates_keep_their_cause(
    finding: StepFinding, is_sudden: bool, cause: str
) -> None:
    assert refined(diagnosis(cause), finding, is_sudden=is_sudden).root_cause == cause


@pytest.mark.parametrize(("rows_before", "cause"), [(8, "model_code"), (1, "data"), (None, "data")])
def test_an_exception_on_a_batch_of_its_own_size_is_the_codes_fault(
    rows_before: int | None, cause: str
) -> None:
    finding = StepFinding(kind="exception", cause="ValueError", rows=1, rows_before=rows_before)

    assert refined(diagnosis("data"), finding, is_sudden=True).root_cause == cause


def test_the_sizes_of_the_bad_batch_and_of_the_one_before_are_told_apart() -> None:
    inspections = {54: {**seen(), "rows": 8}, 55: {**seen(), "rows": 1}, 56: {**seen(), "rows": 8}}

    finding = finding_of(inspections, bad_steps=[55, 56])

    assert (finding.rows, finding.rows_before) == (1, 8)


def test_an_exception_of_the_script_is_told_with_its_line() -> None:
    trace = 'Traceback:\n  File "train.py", line 7, in <module>\n    table[60]\nIndexError: no'

    finding = exception_of(
        ExitNote(kind="exception", exception="IndexError", message="no", traceback=trace)
    )

    assert finding.detail == 'IndexError: no ("train.py", line 7, in <module>)'
    assert finding.place is None
