"""The live goodput follows the rules of the report's ledger."""

from __future__ import annotations

import pytest

from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.parent.metrics.run_figures import Goodput
from supervisor.records import StepRecord


def steps(*numbers: int, each_s: float = 1.0) -> list[StepRecord]:
    return [StepRecord(step=number, step_time_s=each_s) for number in numbers]


def event(kind: str, **fields: object) -> JournalEvent:
    return parse_event({"time": "", "attempt": 1, "rank": 0, "step": 5, "kind": kind, **fields})


def rollback(before: int, source: int, target: int) -> JournalEvent:
    return event("rollback", before_step=before, from_step=source, to_step=target, name="rollback")


def action(name: str, step: int = 5, **fields: object) -> JournalEvent:
    told = {"rung": 1, "cost_s": 0.0, "outcome": "applied", "applied": True}
    return event("action", name=name, step=step, **{**told, **fields})


def test_steps_that_an_attempt_makes_again_count_once() -> None:
    goodput = Goodput()

    goodput.stepped(steps(*range(10)))
    goodput.saw(event("attempt_started", checkpoint_step=3))
    goodput.stepped(steps(*range(4, 8)))

    assert goodput.useful_s() == 8.0


def test_an_attempt_from_the_start_leaves_nothing_of_the_one_before() -> None:
    goodput = Goodput()

    goodput.stepped(steps(0, 1, 2))
    goodput.saw(event("attempt_started", checkpoint_step=None))

    assert goodput.useful_s() == 0.0


def test_steps_that_rollbacks_threw_away_are_lost_once() -> None:
    goodput = Goodput()

    goodput.stepped(steps(*range(30)))
    goodput.saw(rollback(before=21, source=20, target=10))
    goodput.saw(rollback(before=26, source=25, target=5))

    assert goodput.useful_s() == 30.0 - 20.0  # steps 6 to 25


def test_stalls_within_steps_are_no_training() -> None:
    goodput = Goodput()

    goodput.stepped(steps(*range(10)))
    goodput.saw(action("cut_lr", cost_s=2.5))
    goodput.saw(action("cut_lr", cost_s=9.0, phase="verified"))  # a verdict, no stall

    assert goodput.useful_s() == pytest.approx(7.5)


def test_without_steps_it_is_zero() -> None:
    assert Goodput().useful_s() == 0.0
