"""When a trial step is asked for, and what follows from what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.config import load_policy
from supervisor.ladder.trial_steps import (
    AFTER,
    REST,
    TRIAL_HIGH,
    TRIAL_LOSS,
    TRIAL_LOW,
    TRIAL_OF,
    TRIAL_STEP,
    TrialAnswer,
    answer_of,
    level_of,
)
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import ActionResult, Decision, StepRecord
from supervisor.settings import PolicySettings, RunSettings

AT = 120


def record(step: int, loss: float, **more: float) -> StepRecord:
    return StepRecord(
        step=step, loss=loss, grad_norm=1.0, loss_seen=True, grad_norm_seen=True, observed=more
    )


def loss_at(step: int, leap: float = 1.5) -> float:
    """Comes down from 2 to 0.5 and leaps at step `AT`; the untrained network's is 2."""
    noise = 1.0 + 0.01 * (step * 7 % 5)
    return (leap if step >= AT else max(0.5, 2.0 - 0.02 * step)) * noise


class Course:
    """A pipeline and what it has decided; `trial_loss` answers a trial, None refuses it."""

    def __init__(
        self,
        trial_loss: Callable[[int], float | None] = lambda step: None,
        policy: PolicySettings | None = None,
        leap: float = 1.5,
    ) -> None:
        self.pipeline = Pipeline(RunSettings(), policy or load_policy())
        self.trial_loss = trial_loss
        self.leap = leap
        self.decisions: list[Decision] = []
        self.judgements: list[Judgement] = []
        self._is_trial = False

    def go(self, first: int, last: int) -> Course:
        for step in range(first, last):
            self._take(step)
        return self

    def _take(self, step: int) -> None:
        loss = self.trial_loss(step) if self._is_trial else None
        more = {TRIAL_OF: AT - 20.0, TRIAL_LOW: 0.5, TRIAL_HIGH: self.leap}
        more = {} if loss is None else {**more, TRIAL_LOSS: loss}
        seen = record(step, loss_at(step, self.leap), **more)
        self._is_trial = False
        judgement = self.pipeline.update(seen)
        self.judgements.append(judgement)
        decision = judgement.decision
        if decision is None:
            return
        self.decisions.append(decision)
        if TRIAL_STEP in decision.actions:
            self._is_trial = self.trial_loss(step + 1) is not None
            self.pipeline.settle(ActionResult(name=TRIAL_STEP, applied=self._is_trial))

    @property
    def made(self) -> list[tuple[int, str]]:
        return [
            (d.step, name) for d in self.decisions for name in d.actions if name != "checkpoint"
        ]


def test_older_weights_that_do_well_send_the_run_back_with_the_evidence() -> None:
    course = Course(lambda step: 0.52).go(0, AT + 10)

    assert course.made[:2] == [(AT + AFTER - 1, TRIAL_STEP), (AT + AFTER, "rollback")]
    back = next(d for d in course.decisions if "rollback" in d.actions)
    assert back.onset_step == AT
    assert "have a loss of 0.52" in back.reason
    assert "the state of the training is to blame" in back.reason


def test_older_weights_that_do_as_badly_have_the_new_level_adopted() -> None:
    course = Course(lambda step: 1.6).go(0, AT + 80)

    assert course.made == [(AT + AFTER - 1, TRIAL_STEP)]
    assert course.judgements[AT + AFTER].trial is TrialAnswer.CHANGED
    assert course.judgements[AT + AFTER].record.announced
    assert not any(j.risk.alarm for j in course.judgements[AT + AFTER :])


def test_a_loss_in_between_is_tried_twice_and_then_left_to_the_ladder() -> None:
    course = Course(lambda step: 0.87).go(0, AT + 30)

    assert course.made == [(AT + AFTER - 1, TRIAL_STEP), (AT + AFTER, TRIAL_STEP)]


@pytest.mark.parametrize("leap", [8.0, 1e6])
@pytest.mark.parametrize("way", [0.5, None])
def test_ruin_that_no_trial_decides_is_rolled_back(way: float | None, leap: float) -> None:
    answer = None if way is None else 0.5 * (leap / 0.5) ** way
    course = Course(lambda step: answer, leap=leap).go(0, AT + 10)

    names = [name for _, name in course.made]
    assert names[:1] == [TRIAL_STEP]
    assert "rollback" in names
    assert names.count(TRIAL_STEP) == (1 if answer is None else 2)


def test_ruin_waits_for_the_boundary_at_which_its_trial_begins() -> None:
    """Calm steps are judged together, so some are computed already that are judged after it."""
    course = Course(leap=8.0).go(0, AT)
    pipeline = course.pipeline
    asked = [d.step for j in pipeline.update_all([record(AT + n, 8.0) for n in range(2)])
             if (d := j.decision) and TRIAL_STEP in d.actions]  # fmt: skip
    pipeline.ladder.trials.is_pending = True

    meanwhile = [pipeline.update(record(AT + n, 8.0)).decision for n in (2, 3)]
    pipeline.settle(ActionResult(name=TRIAL_STEP, applied=True))
    more = {TRIAL_OF: 99.0, TRIAL_LOSS: 0.5, TRIAL_LOW: 0.5, TRIAL_HIGH: 8.0}
    after = pipeline.update(record(AT + 4, 8.0, **more)).decision

    assert asked == [AT + 1]
    assert meanwhile == [None, None]
    assert after is not None
    assert "rollback" in after.actions


def test_a_trial_that_was_refused_is_not_asked_for_again_at_once() -> None:
    course = Course().go(0, AT + 60)

    assert [name for _, name in course.made] == [TRIAL_STEP]
    assert course.made[0][0] + REST > AT + 60


def test_a_single_odd_batch_and_a_leap_that_comes_back_are_not_tried() -> None:
    course = Course(lambda step: 1.6)
    course.go(0, AT + AFTER - 1)
    course.leap = 0.5
    course.go(AT + AFTER - 1, AT + 40)

    assert course.made == []


@pytest.mark.parametrize(("before", "asked"), [(0.5, "skip_update"), (0.8, TRIAL_STEP)])
def test_an_absurd_gradient_is_a_batch_only_where_the_loss_was_usual_before(
    before: float, asked: str
) -> None:
    pipeline = Pipeline(RunSettings(), load_policy())
    for step in range(AT):
        pipeline.update(record(step, loss_at(step)))
    pipeline.update(record(AT, before))

    decision = pipeline.update(replace(record(AT + 1, 3.0), grad_norm=1e3)).decision

    assert decision is not None
    assert decision.actions == (asked,)


def test_a_level_that_rises_among_low_losses_is_tried_once_the_mean_of_many_tells() -> None:
    course = Course(lambda step: 0.52)
    for step in range(AT + 40):
        course.leap = 0.4 if step % 3 == 0 else 1.2
        course.go(step, step + 1)
        if course.made:
            break

    assert course.made == [(step, TRIAL_STEP)]
    assert step > AT + AFTER


@pytest.mark.parametrize("only_observes", [True, False])
def test_who_only_observes_or_has_it_off_tries_nothing(only_observes: bool) -> None:
    policy = load_policy()
    policy.observe_only, policy.guard.trial_step = only_observes, only_observes

    course = Course(lambda step: 0.5, policy, leap=8.0).go(0, AT + 20)

    assert TRIAL_STEP not in [name for _, name in course.made]


def test_no_trial_in_a_game_or_an_environment() -> None:
    for more in ({"others_trained": True}, {"in_environment": True}):
        pipeline = Pipeline(RunSettings(), load_policy())
        made = []
        for step in range(AT + 20):
            seen = StepRecord(step=step, loss=loss_at(step), loss_seen=True, **more)
            decision = pipeline.update(seen).decision
            made += decision.actions if decision else ()

        assert TRIAL_STEP not in made


def test_a_pipeline_that_is_saved_between_question_and_answer_goes_on() -> None:
    course = Course(lambda step: 0.52).go(0, AT + AFTER)
    state = json.loads(json.dumps(course.pipeline.state_dict()))
    course.pipeline = Pipeline(RunSettings(), load_policy())
    course.pipeline.load_state_dict(state)

    course.go(AT + AFTER, AT + AFTER + 1)

    assert course.made == [(AT + AFTER - 1, TRIAL_STEP), (AT + AFTER, "rollback")]


def test_rows_alone_give_the_answer_again() -> None:
    """The parent's copy and `backtest` judge from them, several at once."""
    live = Course(lambda step: 1.6).go(0, AT + 60)
    rows = [j.record for j in live.judgements]
    rows[AT + AFTER].announced = False

    again = list(Pipeline(RunSettings(), load_policy()).update_all(rows))

    assert [j.trial for j in again] == [j.trial for j in live.judgements]
    assert [j.risk for j in again[AT + AFTER :]] == [j.risk for j in live.judgements[AT + AFTER :]]


def test_what_the_weights_gave_is_known_of_the_losses_around_their_step() -> None:
    course = Course().go(0, AT + 4)

    assert course.pipeline.level_at(60) == pytest.approx(0.9, rel=0.05)

    course.pipeline.load_state_dict(json.loads(json.dumps(course.pipeline.state_dict())))
    assert course.pipeline.level_at(-60) == pytest.approx(0.5, rel=0.05)


def test_losses_below_zero_are_compared_by_difference() -> None:
    def answered(loss: float) -> TrialAnswer:
        return answer_of(
            record(9, 2.0, **{TRIAL_OF: 3, TRIAL_LOSS: loss, TRIAL_LOW: -4.0, TRIAL_HIGH: 2.0})
        )[0]

    assert answered(-3.9) is TrialAnswer.STATE
    assert answered(-1.0) is TrialAnswer.OPEN
    assert answered(1.9) is TrialAnswer.CHANGED
    assert answered(math.nan) is TrialAnswer.OPEN


def test_a_level_that_is_hardly_known_is_not() -> None:
    assert math.isnan(level_of([1.0] * 5 + [math.inf]))
    assert level_of([1.0] * 5 + [3.0]) == 1.0
