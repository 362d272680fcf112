from __future__ import annotations

import pytest

from supervisor.prediction.moving_objective import MovingObjective
from supervisor.records import StepRecord


def marked(observed: list[dict[str, float]], asked: bool | None = None) -> list[bool]:
    rule = MovingObjective(asked)
    records = [StepRecord(step=step, observed=seen) for step, seen in enumerate(observed)]
    return [rule.mark(record)[0].in_environment for record in records]


def test_a_run_is_one_of_reinforcement_learning_from_its_first_reward_on() -> None:
    assert marked([{}, {"episode_return": 3.0}, {}]) == [False, True, True]


@pytest.mark.parametrize(
    "observed",
    [
        {"entropy": 1.0, "value_loss": 3.0},
        {"reward": float("nan")},
        {"reward_margin": 0.2, "reward_score": 0.1},  # `observe(chosen_rewards=...)`
        {"mean_reward": 0.3, "margin": 0.2},  # TRL's RewardTrainer
        {"rewards/chosen": 0.3, "rewards/margins": 0.2},  # TRL's DPOTrainer
    ],
)
def test_what_is_unknown_a_reward_model_and_dpo_are_none(observed: dict[str, float]) -> None:
    assert marked([observed] * 3) == [False] * 3


def test_the_setting_has_the_last_word_and_it_is_told_once() -> None:
    acting = StepRecord(step=0, in_environment=True)
    rule = MovingObjective(None)

    told = [rule.mark(record)[1] for record in (StepRecord(step=0), acting, acting)]

    assert [bool(why) for why in told] == [False, True, False]
    assert marked([{"reward": 1.0}], asked=False) == [False]


def test_a_game_stays_one_until_another_training_begins() -> None:
    seen = [(False, False), (True, False), (False, False), (False, True)]
    rule = MovingObjective(None)

    marked = [
        rule.mark(StepRecord(step=step, others_trained=others, begins_training=begins))[0]
        for step, (others, begins) in enumerate(seen)
    ]

    assert [record.has_moving_objective for record in marked] == [False, True, True, False]
