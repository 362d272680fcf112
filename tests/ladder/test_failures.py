"""A treatment that failed twice for a cause is not repeated for it in this run."""

from __future__ import annotations

import json

import pytest

from supervisor.config import load_policy
from supervisor.ladder.escalation import EscalationLadder
from supervisor.ladder.failures import Failures
from supervisor.ladder.treatments import TreatmentOutcome
from supervisor.records import Cause
from tests.ladder.test_escalation import Course, advised


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


def certain_episodes(course: Course, count: int) -> None:
    """Certain trouble that no treatment cures, and that passes by itself."""
    for _ in range(count):
        course.go(0.95, 60)
        course.go(0.35, 60)
        course.go(0.0, 250)


def last_resorts(enough: int, monkeypatch: pytest.MonkeyPatch, lasting: int) -> list[int]:
    """Steps of restarts and stops in a third episode, from its beginning on."""
    monkeypatch.setattr("supervisor.ladder.failures.ENOUGH", enough)
    course = Course()
    course.go(0.0, 60)
    certain_episodes(course, 2)
    begins = course.step
    course.go(0.95, lasting)
    course.go(0.0, 100)
    late = [d for d in course.decisions if d.step >= begins]
    return [d.step - begins for d in late if {"restart", "stop"} & set(d.actions)]


@pytest.mark.parametrize("lasting", [30, 60, 700])
def test_a_run_is_restarted_or_stopped_no_sooner_because_all_else_had_failed(
    lasting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = last_resorts(10**9, monkeypatch, lasting)

    now = last_resorts(2, monkeypatch, lasting)

    assert len(now) <= len(before)
    assert all(mine >= theirs for mine, theirs in zip(now, before, strict=False))
    assert bool(now) == (lasting > 30)


def test_what_failed_twice_at_certain_risk_is_not_tried_again() -> None:
    course = Course()
    course.go(0.0, 60)

    certain_episodes(course, 4)

    made = given(course, Cause.DIVERGENCE)
    assert made.count("rollback") == 2
    assert made.count("cut_lr") == 2


def test_the_guards_own_rollback_is_not_ruled_out() -> None:
    """Weights that are not finite need it, however often one failed."""
    course = Course()
    course.go(0.0, 60)
    certain_episodes(course, 3)
    before = given(course, Cause.NONFINITE).count("rollback")

    course.ladder._failures._failed = {"nonfinite/rollback": 2}
    course.go(0.95, 12, loss=float("nan"), cause=Cause.NONFINITE)

    assert given(course, Cause.NONFINITE).count("rollback") > before


@pytest.mark.parametrize("cause", [Cause.LOSS_SCALE, Cause.SPIKE])
def test_a_list_of_its_own_passes_over_what_failed_twice(cause: Cause) -> None:
    policy = load_policy()
    policy.by_cause = {cause.value: ["tighten_clip", "cut_lr"]}
    course = Course(policy)
    course.go(0.0, 60)
    course.ladder._failures._failed = {f"{cause.value}/tighten_clip": 2}

    course.go(0.55, 1, cause=cause)

    assert given(course, cause) == ["cut_lr"]


def test_advice_passes_over_what_failed_twice() -> None:
    course = Course()
    course.go(0.0, 60)
    course.ladder._failures._failed = {"divergence/tighten_clip": 2}

    decision = advised(course, 0.55, "tighten_clip", "cut_lr")

    assert "tighten_clip" not in decision.actions
    assert "cut_lr" in decision.actions
