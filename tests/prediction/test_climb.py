from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable

import pytest

from supervisor.analysis.backtest.backtest import BacktestResult, backtest_records
from supervisor.config import load_policy
from supervisor.prediction.climb import Climb
from supervisor.records import StepRecord
from supervisor.settings import RunSettings


def noisy(levels: Iterable[float], seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [math.exp(level + noise.gauss(0.0, 0.15)) for level in levels]


def ever_found(losses: list[float]) -> bool:
    climb = Climb()
    seen = False
    for loss in losses:
        climb.update(loss)
        seen = seen or climb.found
    return seen


def test_a_steady_climb_is_seen() -> None:
    assert ever_found(noisy([*[0.0] * 100, *[0.01 * i for i in range(80)]]))


def test_noise_a_fall_and_a_single_jump_are_not() -> None:
    for seed in range(20):
        assert not ever_found(noisy([0.0] * 400, seed))
        assert not ever_found(noisy([-0.01 * i for i in range(400)], seed))
        assert not ever_found(noisy([*[0.0] * 200, *[1.0] * 200], seed))


def test_a_loss_that_may_be_negative_is_not_judged() -> None:
    assert not ever_found([-0.1, *noisy([0.01 * i for i in range(200)])])


def test_a_copy_of_the_state_goes_on_bit_for_bit() -> None:
    losses = noisy([*[0.0] * 80, *[0.01 * i for i in range(80)]])
    first, copy = Climb(), Climb()
    for loss in losses[:97]:
        first.update(loss)

    copy.load_state_dict(json.loads(json.dumps(first.state_dict())))

    for loss in losses[97:]:
        first.update(loss)
        copy.update(loss)
        assert first.state_dict() == copy.state_dict()


def judged(losses: list[float]) -> BacktestResult:
    records = (StepRecord(step=i, loss=x, loss_seen=True) for i, x in enumerate(losses))
    return backtest_records(records, RunSettings(), load_policy())


def memorised(seed: int = 3) -> list[float]:
    """Comes down from 2.3 by heart, and varies by ratios of ten."""
    noise = random.Random(seed)
    return [
        2.3 * math.exp(-i / 40) * noise.lognormvariate(0, 0.3) + 1e-5 * noise.lognormvariate(0, 1.5)
        for i in range(1200)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_memorised_run_is_left_alone(seed: int) -> None:
    result = judged(memorised(seed))

    assert result.alarms == []
    assert result.first_treatment is None


def test_a_memorised_run_that_comes_back_is_seen_after_three_rows() -> None:
    losses = memorised()
    losses[1000:1040] = [1.2 + 0.05 * math.sin(i) for i in range(40)]

    (alarm, *_) = judged(losses).alarms

    assert 1000 <= alarm.step <= 1002
    assert alarm.reason.startswith("the loss of 1.24546 is more than ten times all of its last 50")


def test_one_or_two_rows_of_it_are_a_batch() -> None:
    losses = memorised()
    losses[1000:1002] = [1.2, 1.2]

    assert judged(losses).alarms == []


def test_a_margin_loss_that_is_mostly_zero_is_seen_too() -> None:
    noise = random.Random(0)
    share = [max(0.1, 1 - i / 60) for i in range(700)]
    losses = [x * noise.uniform(0.7, 1.3) if noise.random() < x else 0.0 for x in share]

    assert judged(losses).alarms == []
    assert judged([*losses, *[1.5] * 20]).first_alarm in range(700, 704)
