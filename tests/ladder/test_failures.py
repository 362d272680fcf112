"""A treatment that failed twice for a cause is not repeated for it in this run."""

from __future__ import annotations

import json

from supervisor.config import load_policy
from supervisor.ladder.escalation import EscalationLadder
from supervisor.ladder.failures import Failures
from supervisor.ladder.treatments import TreatmentOutcome
from supervisor.records import Cause
from tests.ladder.test_escalation import Course


def given(course: Course, cause: Cause) -> list[str]:
    return [
        name
        for decision in course.decisions
        if decision.cause is cause
        for name in decision.actions
        if name != "checkpoint"
    ]


def episodes(course: Course, count: int, cause: Cause = Cause.DIVERGENCE) -> None:
    """Trouble that outlasts each treatment's window, then calm enough to end the episode."""
    for _ in range(count):
        course.go(0.55, 40, cause=cause)
        course.go(0.3, 20, cause=cause)
        course.go(0.0, 250)


def test_what_failed_in_two_episodes_is_not_tried_in_the_third() -> None:
    course = Course()
    course.go(0.0, 60)

    episodes(course, 6)

    assert [found[2] for found in course.outcomes] == ["failed"] * 4
    made = given(course, Cause.DIVERGENCE)
    assert made.count("cut_lr") == 2
    assert made.count("tighten_clip") == 2
    assert not {"restart", "stop"} & set(made)


def test_another_cause_is_still_treated() -> None:
    course = Course()
    course.go(0.0, 60)
    episodes(course, 4)

    episodes(course, 1, Cause.SPIKE)

    assert "cut_lr" in given(course, Cause.SPIKE)


def test_what_helped_in_between_may_be_tried_again() -> None:
    failures = Failures()
    for outcome in ("failed", "helped", "failed"):
        failures.take_in([TreatmentOutcome("cut_lr", 0, outcome, "divergence", 1)])

    assert failures.left(("cut_lr",), Cause.DIVERGENCE) == ("cut_lr",)


def test_a_resume_remembers_what_failed() -> None:
    course = Course()
    course.go(0.0, 60)
    episodes(course, 3)
    state = json.loads(json.dumps(course.ladder.state_dict()))
    before = len(given(course, Cause.DIVERGENCE))

    course.ladder = EscalationLadder(load_policy())
    course.ladder.load_state_dict(state)
    episodes(course, 2)

    assert len(given(course, Cause.DIVERGENCE)) == before


def test_what_is_not_finite_is_kept_from_the_weights_however_often() -> None:
    course = Course()
    course.go(0.0, 60)

    for _ in range(5):
        course.go(0.8, 1, loss=float("nan"), cause=Cause.NONFINITE)
        course.go(0.55, 20)

    assert given(course, Cause.NONFINITE).count("skip_update") == 5
