from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config import load_policy
from supervisor.ladder.escalation import EscalationLadder
from supervisor.records import (
    NAN,
    ActionResult,
    Cause,
    CrashRisk,
    Decision,
    StepRecord,
)
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings


class Course:
    """Feeds a ladder and settles what it decides, as a training does."""

    def __init__(self, policy: PolicySettings | None = None, refuse: Sequence[str] = ()) -> None:
        self.policy = policy or load_policy()
        self.ladder = EscalationLadder(self.policy)
        self.refuse = refuse
        self.decisions: list[Decision] = []
        self.outcomes: list[tuple[str, int, str]] = []
        self.step = 0

    def go(
        self,
        risk: float = 0.0,
        steps: int = 1,
        *,
        cause: Cause = Cause.DIVERGENCE,
        loss: float = 2.0,
        grad: float = 1.0,
        scale: float = NAN,
        lr: float = NAN,
    ) -> list[Decision]:
        made = []
        for _ in range(steps):
            record = StepRecord(
                step=self.step,
                loss=loss,
                grad_norm=grad,
                loss_scale=scale,
                lr=lr,
                step_time_s=0.1,
                loss_seen=True,
                grad_norm_seen=True,
            )
            judged = CrashRisk(
                step=self.step,
                probability=risk,
                cause=cause,
                alarm=RiskLines.of(self.policy).is_alarm(risk),
                onset_step=self.step if risk else -1,
            )
            decision = self.ladder.decide(record, (), judged)
            self.outcomes.extend(found[:3] for found in self.ladder.outcomes)
            if decision is not None:
                made.append(decision)
                for name in decision.actions:
                    result = ActionResult(name=name, applied=name not in self.refuse)
                    self.ladder.settle(result)
            self.step += 1
        self.decisions.extend(made)
        return made


def actions(decisions: list[Decision]) -> list[tuple[str, ...]]:
    return [decision.actions for decision in decisions]


def test_a_healthy_run_is_left_alone() -> None:
    course = Course()

    course.go(0.0, 300)

    assert course.decisions == []


def test_low_risk_asks_for_a_checkpoint_once_in_a_cooldown() -> None:
    course = Course()

    made = course.go(0.35, 20)

    assert actions(made) == [("checkpoint",)]


def test_one_nan_is_skipped_and_nothing_else_happens() -> None:
    course = Course()
    course.go(0.0, 50)

    made = course.go(0.8, loss=NAN, cause=Cause.NONFINITE) + course.go(0.0, 200)

    assert actions(made) == [("skip_update",)]
    assert made[0].rung == -1
    assert made[0].cause is Cause.NONFINITE


def test_a_nan_that_is_there_again_right_after_a_skip_rolls_back_to_before_it() -> None:
    course = Course()
    course.go(0.0, 50)

    made = course.go(0.9, 2, loss=NAN, cause=Cause.NONFINITE)

    assert actions(made) == [("skip_update",), ("rollback",)]
    assert made[1].onset_step == 50


def test_an_overflow_under_a_scaler_is_left_to_the_scaler() -> None:
    course = Course()
    course.go(0.0, 50, scale=1024.0)

    assert course.go(0.0, grad=float("inf"), scale=1024.0) == []


def test_an_absurd_loss_is_skipped_and_rolled_back_when_it_persists() -> None:
    course = Course()
    course.go(0.0, 50)

    assert actions(course.go(0.6, loss=2e4, grad=1e4)) == [("skip_update",)]
    assert course.go(0.0, 20) == []
    sick = course.go(0.6, 2, loss=30.0, grad=30.0)
    assert actions(sick) == [("skip_update",), ("rollback",)]


def test_absurd_gradients_alone_are_skipped_up_to_the_limit() -> None:
    course = Course()
    course.go(0.0, 50)

    made = course.go(0.3, 3, grad=100.0)

    assert actions(made) == [("skip_update",), ("skip_update",), ("rollback",)]


def test_a_norm_far_beyond_few_others_is_a_healthy_batch() -> None:
    """A batch of four under batch normalisation, with a penalty on the gradient's norm."""
    course = Course()
    course.go(0.0, 20)

    assert course.go(0.0, grad=45.0) == []


def test_where_norms_vary_widely_a_larger_one_is_a_healthy_batch() -> None:
    course = Course()
    for _ in range(5):
        course.go(0.0, 18)
        course.go(0.0, grad=4.0)
        course.go(0.0, grad=6.0)

    assert course.go(0.0, grad=25.0) == []
    assert actions(course.go(0.0, grad=5000.0)) == [("skip_update",)]


def test_the_guard_can_be_switched_off() -> None:
    policy = load_policy()
    policy.guard.skip_nonfinite = policy.guard.skip_spike = False
    course = Course(policy)
    course.go(0.0, 50)

    made = course.go(0.8, loss=NAN, cause=Cause.NONFINITE)

    assert actions(made) == [("cut_lr", "tighten_clip")]


def test_escalation_goes_up_one_rung_after_each_cooldown() -> None:
    course = Course()

    made = [d for d in course.go(0.75, 60) if d.actions != ("checkpoint",)]

    assert actions(made)[:2] == [("cut_lr", "tighten_clip"), ("rollback",)]
    assert made[1].step - made[0].step == course.policy.cooldown_steps


def test_nearly_certain_trouble_rolls_back_first_and_never_begins_with_a_restart() -> None:
    course = Course()

    made = course.go(0.95)

    assert actions(made) == [("rollback",)]


def test_a_cause_has_its_own_list_that_comes_first() -> None:
    policy = load_policy()
    policy.by_cause = {"loss_scale": ["fp32_fallback", "cut_lr"]}
    course = Course(policy)

    made = course.go(0.6, 100, cause=Cause.LOSS_SCALE)
    treated = [a for a in actions(made) if a != ("checkpoint",)]

    assert treated[:3] == [("fp32_fallback",), ("cut_lr",), ("cut_lr", "tighten_clip")]


def test_an_action_that_does_not_apply_leaves_the_way_free_for_the_next() -> None:
    policy = load_policy()
    policy.by_cause = {"loss_scale": ["fp32_fallback"]}
    course = Course(policy, refuse=["fp32_fallback"])

    made = course.go(0.6, 2, cause=Cause.LOSS_SCALE)

    assert actions(made) == [("fp32_fallback",), ("cut_lr", "tighten_clip")]
    assert "fp32_fallback" not in course.ladder.active


def test_treatments_are_verified_and_taken_back_latest_first_one_at_a_time() -> None:
    course = Course()
    course.go(0.0, 50)
    course.go(0.6)

    made = course.go(0.0, 400)

    assert [decision.undo for decision in made] == [("tighten_clip",), ("cut_lr",)]
    assert made[1].step - made[0].step >= course.policy.healthy_steps
    assert ("cut_lr", 50, "helped") in course.outcomes


def test_a_treatment_that_did_not_help_is_called_failed() -> None:
    course = Course()
    course.go(0.0, 50)

    course.go(0.6, 60, loss=3.0)

    assert ("cut_lr", 50, "failed") in course.outcomes


def test_a_treatment_needed_again_after_its_undo_stays_twice_as_long() -> None:
    course = Course()
    course.go(0.6)
    undone = course.go(0.0, 400)
    course.go(0.6)

    made = course.go(0.0, 800)

    first = undone[0].step
    assert [decision.undo for decision in undone] == [("tighten_clip",), ("cut_lr",)]
    assert first == course.policy.healthy_steps
    assert [decision.undo for decision in made] == [("tighten_clip",), ("cut_lr",)]


def test_relapses_bring_other_help_along_then_a_restart_then_the_end() -> None:
    policy = load_policy()
    policy.budget.max_rollbacks = 3
    course = Course(policy)
    course.go(0.0, 50)

    made = course.go(0.95, 40, loss=NAN, cause=Cause.NONFINITE)
    strong = [a for a in actions(made) if a != ("skip_update",)]

    assert strong == [
        ("rollback",),
        ("rollback", "fp32_fallback"),
        ("rollback", "cut_lr"),
        ("restart",),
        ("stop",),
    ]


def test_what_cannot_be_helped_is_left_alone_as_long_as_it_is_finite() -> None:
    policy = load_policy()
    policy.budget.max_rollbacks = 1
    course = Course(policy)
    course.go(0.0, 50)

    made = course.go(0.95, 400)
    course.go(0.95, 3, loss=NAN, cause=Cause.NONFINITE)

    named = [name for decision in made for name in decision.actions]
    assert "restart" in named
    assert "stop" not in named
    assert "left alone" in made[-1].reason
    assert set(made[-1].undo) <= {"cut_lr", "tighten_clip"}
    assert made[-1].step < 300
    assert actions(course.decisions)[len(made) :] != []  # what is not finite is treated


def test_a_rollback_that_is_refused_is_not_tried_at_every_step() -> None:
    course = Course(refuse=("rollback",))
    course.go(0.0, 50)

    made = course.go(0.95, 100)

    refused = [d for d in made if "rollback" in d.actions]
    assert 1 <= len(refused) <= 2 + 2 * 100 // course.policy.cooldown_steps


def test_observe_only_says_what_it_would_do() -> None:
    policy = load_policy()
    policy.observe_only = True
    course = Course(policy)

    made = course.go(0.95)
    course.go(0.0, 300)

    assert made[0].dry_run
    assert course.outcomes == []


def test_a_policy_without_rungs_still_guards() -> None:
    course = Course(PolicySettings())
    course.go(0.95, 50)

    made = course.go(0.95, loss=NAN)

    assert actions(course.decisions) == [("skip_update",)] == actions(made)


RISKS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.35, 0.55, 0.75, 0.95]), st.integers(1, 60)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(RISKS, st.integers(1, 6), st.sampled_from(list(Cause)))
def test_cooldown_budget_and_order_of_undo_hold_on_any_course(
    course_of_risk: list[tuple[float, int]], per_run: int, cause: Cause
) -> None:
    policy = load_policy()
    policy.budget.per_run = per_run
    course = Course(policy)

    for risk, steps in course_of_risk:
        course.go(risk, steps, cause=cause)

    treated = [d for d in course.decisions if d.actions and d.actions != ("checkpoint",)]
    ends = [d for d in treated if set(d.actions) & {"restart", "stop"}]
    for before, after in itertools.pairwise(treated):
        apart = after.step - before.step
        assert apart >= policy.cooldown_steps or "rollback" in after.actions
    assert len(treated) - len(ends) <= per_run
    in_force: list[str] = []
    for decision in course.decisions:
        for name in decision.undo:
            assert in_force.pop() == name
        in_force += [
            a for a in decision.actions if a in ("cut_lr", "tighten_clip", "fp32_fallback")
        ]
    stops = [i for i, d in enumerate(course.decisions) if "stop" in d.actions]
    assert not stops or stops == [len(course.decisions) - 1]


@settings(max_examples=20, deadline=None)
@given(RISKS)
def test_a_copy_of_the_state_decides_the_same(course_of_risk: list[tuple[float, int]]) -> None:
    first, second = Course(), Course()
    first.go(0.55, 30)
    second.ladder.load_state_dict(json.loads(json.dumps(first.ladder.state_dict())))
    second.step = first.step

    for risk, steps in course_of_risk:
        assert repr(first.go(risk, steps)) == repr(second.go(risk, steps))  # NaN is not NaN


def test_a_policy_is_not_changed_by_its_ladder() -> None:
    policy = load_policy()
    before = replace(policy)

    Course(policy).go(0.95, 200)

    assert policy == before


def advised(course: Course, risk: float, *advice: str, cause: Cause = Cause.DIVERGENCE) -> Decision:
    record = StepRecord(step=course.step, loss=2.0, loss_seen=True, step_time_s=0.1)
    judged = CrashRisk(step=course.step, probability=risk, cause=cause, onset_step=course.step)
    cases = dict.fromkeys(advice, "case 3 of runs/a")
    decision = course.ladder.decide(record, (), judged, cases)
    course.step += 1
    assert decision is not None
    return decision


def test_a_cause_with_an_empty_list_is_reported_only() -> None:
    policy = load_policy()
    policy.by_cause = {"divergence": []}
    course = Course(policy)

    assert course.go(0.95, 100) == []
    assert actions(course.go(0.95, cause=Cause.LOSS_SCALE)) == [("rollback",)]


def test_the_guard_works_for_a_cause_with_an_empty_list_too() -> None:
    policy = load_policy()
    policy.by_cause = {"nonfinite": []}
    course = Course(policy)
    course.go(0.0, 50)

    assert actions(course.go(0.8, loss=NAN, cause=Cause.NONFINITE)) == [("skip_update",)]


def test_what_helped_in_similar_cases_is_tried_first_and_once() -> None:
    course = Course()

    first = advised(course, 0.55, "rollback", "cut_lr")
    course.go(0.0, 20)
    then = course.go(0.55)

    assert (first.actions, first.source) == (("rollback",), "case library")
    assert "rollback helped in similar cases (case 3 of runs/a)" in first.reason
    assert (then[0].actions, then[0].source) == (("cut_lr", "tighten_clip"), "policy")


def test_advice_brings_in_nothing_that_the_policy_does_not_have() -> None:
    policy = load_policy()
    policy.rungs = [r for r in policy.rungs if "rollback" not in r.actions]

    for advice in ("rollback", "stop", "restart", "skip_update", "fp32_fallback"):
        assert advised(Course(policy), 0.6, advice).actions == ("cut_lr", "tighten_clip")


def test_certain_trouble_does_not_wait_for_milder_advice() -> None:
    assert advised(Course(), 0.95, "cut_lr").actions == ("rollback",)


def test_advice_can_be_switched_off() -> None:
    policy = load_policy()
    policy.case_library = False

    assert advised(Course(policy), 0.55, "rollback").source == "policy"


def test_a_start_that_fails_is_made_anew_and_again_until_it_is_believed() -> None:
    course = Course()
    course.go(loss=2.0)

    made = course.go(loss=300.0, steps=25)

    assert actions(made)[:2] == [("back_to_start",)] * 2
    assert [decision.step for decision in made[:2]] == [10, 20]


def test_a_start_that_is_refused_is_looked_at_again_no_longer_than_it_is_a_start() -> None:
    course = Course(refuse=("back_to_start",))
    course.go(loss=2.0)

    course.go(loss=300.0, steps=500)

    looks = [d.step for d in course.decisions if d.actions == ("back_to_start",)]
    assert looks == [10, 20, 30, 40, 50]


def test_a_noisy_start_is_none_that_fails() -> None:
    course = Course()

    for step in range(60):
        course.go(loss=2.0 * (1.0 + 0.2 * (step % 3)))

    assert not course.decisions


def test_a_leap_of_the_rate_that_does_harm_is_undone_by_its_own_factor() -> None:
    course = Course()
    course.go(steps=80, lr=0.01)

    made = course.go(steps=3, lr=0.4, loss=2.6)
    course.go(steps=300, lr=0.4)
    held = [d for d in course.decisions if "limit_lr" in d.undo]
    course.go(steps=300, lr=0.01)

    assert actions(made) == [("rollback", "limit_lr")]
    assert (made[0].onset_step, made[0].lr_limit) == (80, 0.01)
    assert not held  # not while the script's own rate is that high
    assert [d.undo for d in course.decisions if d.undo] == [("limit_lr",)]


def test_a_leap_of_the_rate_that_does_no_harm_and_a_warm_restart_are_let_be() -> None:
    course = Course()
    course.go(steps=80, lr=0.01)

    course.go(steps=80, lr=0.4)
    course.go(steps=20, lr=0.001)
    course.go(steps=20, lr=0.4, loss=2.6)

    assert not course.decisions


def test_the_rate_is_cut_where_there_is_no_half_precision_to_leave() -> None:
    course = Course(refuse=("fp32_fallback",))
    course.go(0.0, 50)

    first = course.go(0.95, 4, loss=NAN, cause=Cause.NONFINITE)
    course.go(0.0, 250)
    second = course.go(0.95, 4, loss=NAN, cause=Cause.NONFINITE)

    assert ("rollback", "fp32_fallback") in actions(first)
    assert ("rollback", "cut_lr") in actions(second)


def test_half_precision_that_never_worked_is_not_gone_back_to() -> None:
    early, late = Course(), Course()
    late.go(0.0, 100)

    for course in (early, late):
        course.go(0.0, 15)
        course.go(0.95, 4, loss=NAN, cause=Cause.NONFINITE)
        course.go(0.0, 400)

    undone = [[d.undo for d in course.decisions if d.undo] for course in (early, late)]
    assert undone == [[], [("fp32_fallback",)]]
