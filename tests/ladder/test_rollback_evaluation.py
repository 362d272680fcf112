"""The same weights then and now: was the rise of the loss theirs?"""

from __future__ import annotations

import math

import pytest

from supervisor.ladder.rollback_evaluation import RollbackEvaluation
from supervisor.records import StepRecord

THEN = [1.0, 1.1, 0.9, 1.2, 1.0, 1.0, 0.8, 1.1]


def answers(then: list[float], alarming: float, now: list[float]) -> list[str]:
    evaluation = RollbackEvaluation()
    evaluation.start(40, then, alarming)
    said = []
    for step, loss in enumerate(now, start=61):
        if evaluation.is_on:
            said.append(evaluation.update(StepRecord(step=step, loss=loss, loss_seen=True)))
    return said


def test_old_weights_with_a_high_loss_today_are_not_to_blame() -> None:
    first, second = answers(THEN, 5.0, [5.1, 4.8, 5.0])

    assert first == ""
    assert "the weights of step 40 have a loss of 4.8 now and had 1.2 at most" in second


@pytest.mark.parametrize(
    ("then", "alarming", "now"),
    [
        (THEN, 5.0, [1.1, 1.0]),  # the rollback has cured it
        (THEN, 5.0, [5.1, 1.0]),  # one bad batch
        (THEN, 50.0, [4.0, 4.0]),  # lower half of the rise
        ([4.9, 5.0, 5.1, 5.0, 4.8, 5.2], 5.3, [5.3, 5.4]),  # they were sick already
        (THEN[:3], 5.0, [5.1, 4.8]),  # too little is known of them
        ([-x for x in THEN], 0.5, [-0.6, -0.7]),  # lower half of the rise
        (THEN, 0.9, [1.1, 1.0]),  # the loss had not risen
        (THEN, math.nan, [5.1, 4.8]),
        (THEN, 5.0, [math.nan, math.nan]),
    ],
)
def test_nothing_is_said_where_the_weights_may_be_to_blame(
    then: list[float], alarming: float, now: list[float]
) -> None:
    assert not any(answers(then, alarming, now))


def test_losses_that_may_be_negative_are_compared_by_differences() -> None:
    assert any(answers([-x for x in THEN], 5.0, [5.1, 4.8]))


def test_it_goes_on_from_its_state() -> None:
    evaluation, other = RollbackEvaluation(), RollbackEvaluation()
    evaluation.start(40, THEN, 5.0)
    evaluation.update(StepRecord(step=61, loss=5.0, loss_seen=True))
    other.load_state_dict(evaluation.state_dict())

    assert other.is_on
    assert other.update(StepRecord(step=62, loss=5.0, loss_seen=True))
