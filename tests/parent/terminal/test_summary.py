from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.parent.terminal.outcome import Outcome, gave_up, interrupted
from supervisor.parent.terminal.summary import Teller, closing_lines, describe_exit, describe_next
from supervisor.records import ExitCause, WorkerExit

DONE = Outcome(state="completed", exit_code=0, reason="completion marker")


def lines(outcome: Outcome, attempts: int = 1, report: Path | None = None) -> list[str]:
    began = [started(number) for number in range(1, attempts + 1)]
    return closing_lines(outcome, Path("runs/my run"), began, last_step=599, report=report)


def started(attempt: int) -> JournalEvent:
    return parse_event({"kind": "attempt_started", "attempt": attempt})


def test_a_run_without_trouble_ends_in_four_lines() -> None:
    assert lines(DONE) == [
        "completed at step 599",
        "not resumed, trained in one go",
        "not treated",
        "next: supervisor report 'runs/my run'",
    ]


def test_the_end_names_attempts_and_report() -> None:
    first, *_, report, _ = lines(DONE, attempts=3, report=Path("r.html"))

    assert first == "completed at step 599, after 3 attempts"
    assert report == "report: r.html"


def test_who_can_go_on_is_told_how() -> None:
    first, *_, last = lines(gave_up("crash limit"))

    assert first == "given up at step 599: crash limit"
    assert last == "next: supervisor resume 'runs/my run'"


@pytest.mark.parametrize(("has_checkpoint", "code"), [(True, 75), (False, 143)])
def test_an_interrupted_run_is_resumable_only_with_a_checkpoint(
    has_checkpoint: bool, code: int
) -> None:
    assert interrupted("SIGTERM", has_checkpoint=has_checkpoint, asked_by=15).exit_code == code


def test_an_exit_and_what_follows_are_one_line_each() -> None:
    worker_exit = WorkerExit(cause=ExitCause.HOST_OUT_OF_MEMORY, last_step=7, evidence=("1 kill",))

    assert (
        describe_exit(1, worker_exit) == "attempt 1 ended after step 7: host out of memory: 1 kill"
    )
    assert describe_next(2, 5, 1.04) == "attempt 2 starts in 1.0 s from step 5"
    assert describe_next(2, None, 1.0).endswith("from the beginning")


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Teller(quiet=True).say("one")
    Teller(quiet=False).say("two", "three")

    assert capsys.readouterr().err == "supervisor: two\nsupervisor: three\n"


def test_of_several_ranks_the_first_to_fail_is_named() -> None:
    first = WorkerExit(
        cause=ExitCause.KILLED, last_step=7, evidence=("SIGKILL",), rank=1, following=(0, 2)
    )

    assert describe_exit(1, first) == (
        "attempt 1 ended after step 7: rank 1 first: killed: SIGKILL; "
        "the error of rank 0 and 2 is a consequence"
    )
