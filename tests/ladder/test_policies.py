"""What each policy promises in its description, on a ladder of its own."""

from __future__ import annotations

import pytest

from supervisor.config import available_policies, load_policy
from supervisor.ladder.guard import CERTAIN
from supervisor.records import NAN, Cause, Decision
from tests.ladder.test_escalation import Course, actions

READABLE_LINES = 65
"""A person reads so many in a minute."""


def course_of(name: str) -> Course:
    course = Course(load_policy(name))
    course.go(0.0, 60, lr=0.1)
    return course


def treatments(made: list[Decision]) -> list[tuple[str, ...]]:
    return [taken for taken in actions(made) if taken != ("checkpoint",)]


def test_each_policy_can_be_read_in_a_minute() -> None:
    for file in available_policies():
        lines = file.path.read_text().splitlines()
        assert lines[0].startswith("description: ")
        assert len(lines) <= READABLE_LINES, file.name


def test_default_begins_mildly_and_goes_up() -> None:
    course = course_of("default")

    assert actions(course.go(0.35)) == [("checkpoint",)]
    assert actions(course.go(0.55)) == [("cut_lr", "tighten_clip")]
    assert treatments(course.go(0.75, 25)) == [("rollback",)]


def test_cautious_bears_what_default_treats_and_rolls_back_late() -> None:
    course = course_of("cautious")

    assert course.go(0.0, grad=25.0) == []
    assert course_of("default").go(0.0, grad=25.0) != []
    assert actions(course.go(0.6, 5)) == [("checkpoint",)]
    assert treatments(course.go(0.75, 150)) == [("cut_lr",)]
    assert "rollback" in {name for d in course.go(CERTAIN, 150) for name in d.actions}


def test_aggressive_treats_what_default_bears() -> None:
    course = course_of("aggressive")

    assert actions(course.go(0.45)) == [("cut_lr", "tighten_clip")]
    assert treatments(course.go(0.6, 12)) == [("rollback",)]


def test_observe_only_never_acts() -> None:
    course = course_of("observe_only")

    made = [*course.go(0.95, 30), *course.go(0.0, 5, loss=NAN), *course.go(0.0, 300)]

    assert made
    assert all(decision.dry_run for decision in made)
    assert course.outcomes == []


@pytest.mark.parametrize("cause", [Cause.NONFINITE, Cause.LOSS_SCALE])
def test_fp16_leaves_half_precision_first_and_bears_overflows(cause: Cause) -> None:
    course = course_of("fp16")

    assert course.go(0.0, 4, grad=float("inf"), scale=1024.0) == []
    assert actions(course.go(0.55, cause=cause)) == [("fp32_fallback",)]


def test_vae_saves_a_collapsing_model_slows_down_and_ends_the_run() -> None:
    course = course_of("vae")

    made = actions(course.go(0.42, 320, cause=Cause.COLLAPSE))

    assert made[0] == ("checkpoint",)
    assert [taken for taken in made if taken != ("checkpoint",)] == [("cut_lr",), ("stop",)]


def test_rlhf_keeps_bursts_and_slows_down_before_anything_else() -> None:
    course = course_of("rlhf")

    assert course.go(0.0, loss=60.0) == []
    assert actions(course.go(0.65, cause=Cause.DIVERGENCE)) == [("cut_lr",)]
    assert "restart" not in {name for d in course.go(0.96, 300) for name in d.actions}


def test_llm_bears_heavy_tails_clips_first_and_goes_far_back() -> None:
    course = course_of("llm")

    assert course.go(0.0, grad=12.0) == []
    assert actions(course.go(0.55)) == [("tighten_clip",)]
    assert treatments(course.go(0.75, 60)) == [("rollback",)]
    assert course.policy.rollback_margin_steps >= 50


def test_preemptible_saves_early_and_ends_with_a_new_process() -> None:
    course = course_of("preemptible")

    assert actions(course.go(0.22)) == [("checkpoint",)]
    assert treatments(course.go(0.88, 60))[-1] == ("restart",)
