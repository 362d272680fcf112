"""Whatever a training does, in whatever order: what a ladder never does."""

from __future__ import annotations

import json
import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from supervisor.config import load_policy
from supervisor.ladder.escalation import EscalationLadder
from supervisor.ladder.treatments import ONE_OFF
from supervisor.records import ActionResult, Cause, CrashRisk, Decision, StepRecord
from supervisor.settings import RungSettings

REFUSABLE = ("back_to_start", "rollback", "fp32_fallback", "cut_lr", "tighten_clip", "limit_lr")
HEALTHY = 40
COOLDOWN = 10
VERIFY = 20
STEP_S = 60.0


class AnyCourse(RuleBasedStateMachine):
    """A training under a ladder with all of its actions: false starts, leaps of the rate, NaN,
    spikes, climbing risks, refusals, resumes.

    It never oscillates (a treatment needed again right after its undo stays twice as long), never
    exceeds its budget, and what it takes back was in force.
    """

    @initialize(
        per_run=st.integers(2, 40),
        per_hour=st.integers(2, 40),
        rollbacks=st.integers(1, 4),
        refused=st.sets(st.sampled_from(REFUSABLE), max_size=2),
        first=st.sampled_from([2.0, 2.0, 50.0]),
        together=st.booleans(),
    )
    def begin(
        self,
        per_run: int,
        per_hour: int,
        rollbacks: int,
        refused: set[str],
        first: float,
        together: bool,
    ) -> None:
        self.policy = load_policy()
        self.policy.budget.per_run, self.policy.budget.per_hour = per_run, per_hour
        self.policy.budget.max_rollbacks = rollbacks
        if together:
            self.policy.rungs.insert(1, RungSettings(at=0.7, actions=["rollback", "cut_lr"]))
        self.policy.healthy_steps, self.policy.cooldown_steps = HEALTHY, COOLDOWN
        self.policy.verify_steps = VERIFY
        self.policy.by_cause = {
            "loss_scale": ["fp32_fallback"], "dead_units": [], "spike": ["adaptive_clip"],
            "resources": ["checkpoint_activations", "smaller_batch"], "other": ["skip_data"],
            "collapse": ["reset_optimizer", "fp32_modules"],
        }  # fmt: skip
        self.ladder = EscalationLadder(self.policy)
        self.refused = refused
        self.step = 0
        self.lr = 0.1
        self.calm = 0
        self.in_force: list[str] = []
        self.spent: list[int] = []
        self.ended = False
        self.patience: dict[str, int] = {}
        self.undone_at: dict[str, int] = {}
        self.feed(5, loss=2.0)
        self.feed(6, loss=first)  # a start that fails, now and then

    def feed(
        self,
        steps: int,
        *,
        loss: float = 2.0,
        risk: float = 0.0,
        cause: Cause = Cause.DIVERGENCE,
    ) -> None:
        for _ in range(steps):
            record = StepRecord(
                step=self.step, loss=loss, grad_norm=1.0, lr=self.lr, step_time_s=STEP_S,
                loss_seen=True, grad_norm_seen=True,
            )  # fmt: skip
            onset = self.step if risk >= 0.5 else -1
            judged = CrashRisk(step=self.step, probability=risk, cause=cause, onset_step=onset)
            self.calm = self.calm + 1 if risk < 0.5 * self.policy.alarm_threshold else 0
            decision = self.ladder.decide(record, (), judged)
            if decision is not None:
                self.follow(decision)
            self.step += 1

    def follow(self, decision: Decision) -> None:
        assert not self.ended, "nothing comes after a stop"
        for name in decision.undo:
            assert name in self.in_force, f"{name} is not in force"
            if not decision.actions:
                needed = HEALTHY * self.patience.get(name, 1)
                assert self.calm >= needed, f"{name} was taken back after {self.calm} calm steps"
                self.undone_at[name] = self.step
            self.in_force.reverse()
            self.in_force.remove(name)
            self.in_force.reverse()
        free = set(decision.actions) <= {"checkpoint"} or decision.actions == ("skip_update",)
        last = {"restart", "stop"} & set(decision.actions)
        if decision.actions and not free and not last:
            self.spent.append(self.step)
        self.ended = "stop" in decision.actions
        for name in decision.actions:
            applied = name not in self.refused
            if self.step - self.undone_at.get(name, -VERIFY - 1) <= VERIFY:
                self.patience[name] = 2 * self.patience.get(name, 1)
            to_step = 0 if applied and name in ("rollback", "back_to_start") else -1
            self.ladder.settle(ActionResult(name=name, applied=applied, to_step=to_step))
            if applied and name not in ONE_OFF:
                self.in_force.append(name)

    @rule(steps=st.integers(1, 120))
    def it_is_well(self, steps: int) -> None:
        self.feed(steps)

    @rule(
        steps=st.integers(1, 40),
        risk=st.sampled_from([0.35, 0.55, 0.75, 0.95]),
        cause=st.sampled_from(list(Cause)),
    )
    def risk_rises(self, steps: int, risk: float, cause: Cause) -> None:
        self.feed(steps, risk=risk, cause=cause, loss=2.0 + risk)

    @rule(steps=st.integers(1, 8), value=st.sampled_from([math.nan, math.inf, 900.0]))
    def losses_are_poisoned(self, steps: int, value: float) -> None:
        self.feed(steps, loss=value, risk=0.95, cause=Cause.NONFINITE)

    @rule(factor=st.sampled_from([5.0, 50.0]), steps=st.integers(4, 30))
    def the_rate_leaps_and_comes_back(self, factor: float, steps: int) -> None:
        self.lr *= factor
        self.feed(steps, loss=3.0, risk=0.4)
        self.lr /= factor
        self.feed(5)

    @rule()
    def it_relapses_right_after_a_treatment_was_taken_back(self) -> None:
        self.feed(15, risk=0.55)
        before = dict(self.undone_at)
        for _ in range(6 * HEALTHY):
            self.feed(1)
            if self.undone_at != before:
                break
        self.feed(15, risk=0.55)
        self.feed(HEALTHY + 5)

    @rule()
    def a_resume_goes_on_from_its_state(self) -> None:
        state = json.loads(json.dumps(self.ladder.state_dict()))
        self.ladder = EscalationLadder(self.policy)
        self.ladder.load_state_dict(state)

    @invariant()
    def treatments_in_force_are_those_that_were_begun_and_not_taken_back(self) -> None:
        if hasattr(self, "ladder"):
            assert sorted(self.ladder.active) == sorted(self.in_force)

    @invariant()
    def the_budget_is_kept(self) -> None:
        if hasattr(self, "ladder"):
            last_hour = [step for step in self.spent if (self.step - step) * STEP_S < 3600.0]
            assert len(self.spent) <= self.policy.budget.per_run
            assert len(last_hour) <= self.policy.budget.per_hour


AnyCourse.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
test_whatever_a_training_does = AnyCourse.TestCase
