"""What the terminal says of treatments, and how its lines keep clear of the script's."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.parent.terminal.outcome import Outcome, gave_up, interrupted
from supervisor.parent.terminal.output import AttemptLog, OpenLine, OutputPump
from supervisor.parent.terminal.summary import (
    Teller,
    TreatmentLines,
    closing_lines,
    describe_exit,
    describe_next,
)
from supervisor.records import ExitCause, WorkerExit
from supervisor.storage.journal.events import count_treatments
from tests.journals import event

DONE = Outcome(state="completed", exit_code=0, reason="completion marker")


def lines(outcome: Outcome, attempts: int = 1, report: Path | None = None) -> list[str]:
    began = [started(number) for number in range(1, attempts + 1)]
    return closing_lines(outcome, Path("/runs/my run"), began, last_step=599, report=report)


def started(attempt: int) -> JournalEvent:
    return parse_event({"kind": "attempt_started", "attempt": attempt})


def test_a_run_without_trouble_ends_in_four_lines() -> None:
    assert lines(DONE) == [
        "completed at step 599",
        "not resumed, trained in one go",
        "not treated",
        "next: supervisor report '/runs/my run'",
    ]


def test_the_end_names_attempts_and_report() -> None:
    first, *_, report, _ = lines(DONE, attempts=3, report=Path("r.html"))

    assert first == "completed at step 599, after 3 attempts"
    assert report == "report: r.html"


def test_who_can_go_on_is_told_how() -> None:
    first, *_, last = lines(gave_up("crash limit"))

    assert first == "given up at step 599: crash limit"
    assert last == "next: supervisor resume '/runs/my run'"


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
    assert describe_next(2, None, 1.0, 0.1).endswith("from the beginning")
    assert describe_next(2, 50, 1.0, 0.1).endswith("step 50, which is replayed in about 5 s")


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


def action(step: int, name: str = "skip_update", **fields: Any) -> JournalEvent:
    told = {"outcome": "applied", "applied": True, "reason": "loss nan", "detail": "left out"}
    return event("action", attempt=1, step=step, name=name, **{**told, **fields})


def test_each_treatment_has_a_line() -> None:
    lines = TreatmentLines()

    said = lines.of([action(7), action(9, "cut_lr", detail="the rate is halved")])

    assert said == [
        "treated at step 7: skip_update: left out (loss nan)",
        "treated at step 9: cut_lr: the rate is halved (loss nan)",
    ]


def test_a_trial_step_is_no_treatment_and_its_answer_has_a_line() -> None:
    told = {"found": "another level", "detail": "not the weights"}
    answer = event("state_found", attempt=1, step=8, **told)

    said = TreatmentLines().of([action(7, "trial_step"), answer])

    assert said == ["found at step 8: another level: not the weights"]


def test_many_of_a_kind_share_a_line_a_minute() -> None:
    now_s = [0.0]
    lines = TreatmentLines(clock=lambda: now_s[0])

    said = [line for step in range(50) for line in lines.of([action(step)])]
    now_s[0] = 61.0
    later = lines.of([])

    assert len(said) == 3
    assert later == ["treated: skip_update, 47 more like it, the last at step 49"]
    assert lines.of([]) == []


def test_what_was_refused_only_thought_of_or_told_before_is_no_treatment() -> None:
    events = [
        action(1, outcome="refused", applied=False),
        action(2, outcome="would_have", applied=False),
        action(3, "checkpoint"),
        action(4),
        event("update_skipped", attempt=1, step=4, reason="poisoned update"),
        action(14, outcome="helped", phase="verified", applied_at=4),
        event("restart", attempt=1, step=4, next_attempt=2),
    ]

    assert len(TreatmentLines().of(events)) == 1
    assert count_treatments(events) == Counter({"skip_update": 1})


def test_an_update_that_is_left_out_without_an_action_is_told() -> None:
    skipped = event("update_skipped", attempt=2, step=4, reason="ordered after failures")

    assert TreatmentLines().of([skipped]) == [
        "treated at step 4: skip_update (ordered after failures)"
    ]


@pytest.mark.parametrize("has_terminal", [True, False])
def test_a_line_of_ours_begins_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_terminal: bool
) -> None:
    ours, real = os.openpty() if has_terminal else os.pipe()
    line = OpenLine(real)
    pump = OutputPump(
        AttemptLog(tmp_path / "log", 2**20), stdout_fd=real, stderr_fd=real, line=line
    )
    teller = Teller(quiet=False, line=line)
    end = os.dup(pump.stderr)
    pump.start()

    with os.fdopen(os.dup(real), "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        os.write(end, b"\r 45%|####     |")
        _wait_for(ours, b"|####     |")
        teller.say("treated at step 7", "and again")
        os.write(end, b"\r 46%|####     |\n")
        _wait_for(ours, b"and again")
        _wait_for(ours, b"46%|####     |")
        teller.say("completed")
        os.close(end)
        pump.finish()
    said = _SEEN.pop(ours) + os.read(ours, 4096)
    os.close(real)

    rows = said.replace(b"\r\n", b"\n").replace(b"\x1b[J", b"").split(b"\n")
    for text in (b"treated at step 7", b"and again", b"completed"):
        assert b"supervisor: " + text in [row.strip(b"\r") for row in rows]


_SEEN: dict[int, bytes] = {}


def _wait_for(fd: int, text: bytes) -> None:
    while text not in _SEEN.setdefault(fd, b""):
        _SEEN[fd] += os.read(fd, 4096)
