"""For how long the attempts of a run trained before their machine ended them."""

from __future__ import annotations

import pytest

from supervisor.parent.restarts.starting_point import NEWEST, failures_seen
from supervisor.storage.journal.events import parse_event


def line(second: float, kind: str, **fields: object) -> object:
    time = f"2026-11-27T10:00:{second:09.6f}+00:00"
    return parse_event(
        {"time": time, "kind": kind, "attempt": 1, "rank": 0, "step": None, **fields}
    )


def attempt(
    start: float, trains: float, fails: float, cause: str, step: int | None
) -> list[object]:
    begun = (
        line(trains, "state_found", step=0)
        if step is None
        else line(trains, "resumed", step=step, from_step=step)
    )
    return [
        line(start, "attempt_started", checkpoint_step=step),
        line(start + 0.1, "warning", message="of the parent"),
        *([line(start + 0.2, "warning", step=4, message="in the replay")] if step else []),
        begun,
        line(fails - 0.1, "checkpoint_saved", step=9),
        line(fails, "worker_exited", cause=cause),
    ]


def test_imports_and_replays_are_no_training() -> None:
    events = [*attempt(0, 4, 10, "killed", None), *attempt(20, 25, 27, "preempted", 9)]

    assert failures_seen(events) == (2, pytest.approx(8.0))


def test_what_a_training_does_to_itself_does_not_count() -> None:
    events = [*attempt(0, 4, 10, "exception", None), *attempt(20, 25, 27, "completed", 9)]

    assert failures_seen(events) == (0, 0.0)


def test_an_attempt_that_never_trained_has_no_length() -> None:
    events = [
        line(0, "attempt_started", checkpoint_step=9),
        line(5, "worker_exited", cause="killed"),
    ]

    assert failures_seen(events) == (0, 0.0)


def test_the_newest_count_and_damaged_lines_do_not() -> None:
    events = [parse_event({"kind": "resumed", "time": "", "attempt": 1, "rank": 0, "step": 3})]
    for number in range(NEWEST + 2):
        events += attempt(
            number, number + 0.2, number + 0.2 + (0.5 if number > 1 else 0.1), "killed", 3
        )

    assert failures_seen(events) == (NEWEST, pytest.approx(NEWEST * 0.5))
