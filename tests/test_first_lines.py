"""The four lines say the same wherever a run is looked at."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.options.command_parser import COMMANDS, build_parser
from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.first_lines import first_lines
from supervisor.shortfalls import Shortfall


def event(kind: str, attempt: int = 1, **fields: Any) -> JournalEvent:
    return parse_event({"kind": kind, "attempt": attempt, **fields})


def lines(*events: JournalEvent, end: str = "completed", **more: Any) -> tuple[str, ...]:
    began = [event("attempt_started", n) for n in sorted({e.attempt or 0 for e in events} | {1})]
    return first_lines(end, [*began, *events], Path("/runs/a"), **{"last_step": 99, **more})


def resumed(attempt: int, step: int, how: str, reason: str) -> JournalEvent:
    return event("resumed", attempt, from_step=step, exactness=how, reason=reason)


def test_resumes_are_exact_only_if_all_were() -> None:
    exact = resumed(2, 80, "exact", "every replayed step equals the recorded one")

    assert lines(exact)[1] == (
        "resumed exactly from step 80: every replayed step equals the recorded one"
    )
    assert lines(exact, resumed(3, 90, "exact", ""))[1] == "resumed 2 times, exactly from step 90"
    assert lines(
        resumed(2, 80, "approximate", "a.csv is not as it was."), resumed(3, 90, "exact", "")
    )[1] == ("resumed 1 of 2 times approximately from step 80: a.csv is not as it was")
    assert lines(exact, resumed(2, 80, "approximate", "rank 1 differs"))[1] == (
        "resumed approximately from step 80: rank 1 differs"
    )


def test_attempts_without_a_resume_began_again() -> None:
    assert lines(event("worker_exited", 2, cause="killed"))[1] == (
        "not resumed, each attempt began at the start"
    )


def test_a_rank_that_came_back_alone_is_told_of() -> None:
    back = event("healed", rank=1, from_step=40, waited_s=3.44, answered=9)

    assert lines(back)[1] == (
        "not resumed, trained in one go; a killed rank came back alone: rank 1 after 3.4 s"
    )
    assert lines(back, back)[1].endswith("came back alone: 2 times, last rank 1 after 3.4 s")


def test_what_was_treated_is_counted_once_with_its_cost() -> None:
    told = lines(
        event("action", step=40, name="rollback", cost_s=0.25, outcome="applied", applied=True),
        event("rollback", step=40, name="rollback", from_step=40, to_step=25),
        event("action", step=70, name="rollback", phase="verified", applied_at=40, outcome="helped",
              cost_s=9.0),
        event("update_skipped", step=41, reason="poisoned"),
    )  # fmt: skip

    assert told[2] == (
        "treated 2 times: rollback, skip_update; "
        "cost: 0.25 s, 15 steps thrown away, 1 update left out"
    )


def test_an_observing_policy_treats_nothing() -> None:
    wished = event("action", step=4, name="rollback", outcome="would_have")

    assert lines(wished)[2] == "not treated, only considered: 1"


@pytest.mark.parametrize(
    ("end", "command"),
    [
        ("running", "supervisor watch /runs/a"),
        ("completed", "supervisor report /runs/a"),
        ("gave_up", "supervisor resume /runs/a"),
        ("interrupted", "supervisor resume /runs/a"),
        ("supervisor_died", "supervisor resume /runs/a"),
        ("failed", "mend the script, then supervisor resume /runs/a"),
        ("unknown", "supervisor run SCRIPT"),
    ],
)
def test_each_end_has_its_next_command(end: str, command: str) -> None:
    assert lines(end=end)[3] == f"next: {command}"


def test_a_bad_end_goes_back_to_a_stable_checkpoint_where_there_is_one() -> None:
    far = Shortfall(key="high_loss", is_bad=True, title="loss far up", sentence="", advice="")
    stable = event("checkpoint_stable", step=50)

    without = lines(shortfalls=[far])
    with_one = lines(stable, shortfalls=[far])

    assert without[0] == "completed at step 99, but not all is well: loss far up"
    assert without[3] == "next: supervisor report /runs/a"
    assert with_one[3] == "next: supervisor resume /runs/a --from last-stable"


def test_a_run_before_its_first_step_says_what_it_does() -> None:
    assert lines(end="running", last_step=None, reason="starting, for 3 s")[0] == (
        "running before its first step: starting, for 3 s"
    )


def test_why_a_run_has_ended_is_not_said_of_one_that_goes_on() -> None:
    ended = event("run_finished", state="interrupted", reason="SIGTERM")

    assert lines(ended, end="interrupted")[0] == "interrupted at step 99: SIGTERM"
    again = [event("attempt_started"), ended, event("attempt_started", 2)]
    for end in ("running", "supervisor_died"):
        told = first_lines(end, again, Path("/runs/a"), last_step=99)
        assert "SIGTERM" not in told[0]


ENDS = ("running", "completed", "gave_up", "interrupted", "failed", "supervisor_died", "unknown")
TEXTS = st.text(max_size=300)
STEPS = st.none() | st.integers(0, 2**40)
HAPPENED = st.one_of(
    st.builds(event, st.just("attempt_started"), st.integers(1, 4)),
    st.builds(
        event,
        st.just("resumed"),
        st.integers(1, 4),
        from_step=STEPS,
        exactness=st.sampled_from(["exact", "approximate", None]),
        reason=TEXTS,
    ),
    st.builds(
        event,
        st.just("action"),
        step=STEPS,
        name=st.sampled_from(["rollback", "cut_lr", "skip_update", "checkpoint"]),
        outcome=st.sampled_from(["applied", "refused", "would_have", "helped", None]),
        cost_s=st.floats() | st.none(),
        phase=st.sampled_from(["verified", "applied"]),
    ),
    st.builds(event, st.just("rollback"), step=STEPS, from_step=STEPS, to_step=STEPS),
    st.builds(event, st.just("checkpoint_stable"), step=STEPS),
    st.builds(event, st.just("run_finished"), reason=TEXTS),
)


@given(
    end=st.sampled_from(ENDS),
    events=st.lists(HAPPENED, max_size=8),
    step=STEPS,
    reason=TEXTS,
    is_bad=st.none() | st.booleans(),
)
def test_whatever_happened_four_lines_say_it_and_the_next_command_can_be_typed(
    end: str, events: list[JournalEvent], step: int | None, reason: str, is_bad: bool | None
) -> None:
    far = [
        Shortfall(key="k", is_bad=bad, title="far up", sentence="", advice="")
        for bad in (() if is_bad is None else (is_bad,))
    ]

    told = first_lines(
        end, events, Path("/my runs/a"), last_step=step, reason=reason, shortfalls=far
    )

    assert all(line and "\n" not in line and not line.endswith(".") for line in told)
    assert told[1].startswith(("resumed", "not resumed"))
    assert told[2].startswith(("treated", "not treated"))
    words = shlex.split(told[3].removeprefix("next: ").removeprefix("mend the script, then "))
    assert words[0] == "supervisor"
    assert words[1] in COMMANDS
    if end != "unknown":
        assert build_parser(words[1]).parse_args(words[2:]).run == Path("/my runs/a")
