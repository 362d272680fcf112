"""Logs that mislead by their first rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from supervisor.analysis.backtest.backtest import BacktestResult, backtest_records
from supervisor.config import load_policy
from supervisor.prediction.first_rows import LEAP, FirstRows
from supervisor.records import StepRecord
from supervisor.settings import RunSettings


def judged(loss: Callable[[int], float], steps: int = 400) -> BacktestResult:
    records = (StepRecord(step=i, loss=loss(i), loss_seen=True) for i in range(steps))
    return backtest_records(records, RunSettings(), load_policy())


def settles_and_leaves(height: float, rest: float) -> Callable[[int], float]:
    noise = random.Random(1)

    def loss(row: int) -> float:
        if row < 40:
            return height * 0.87**row + rest
        return noise.gauss(0.4, 0.05) if row < 250 else noise.gauss(2.2, 0.3)

    return loss


def test_a_first_loss_a_hundred_times_too_high_blinds_nothing() -> None:
    big, small = judged(settles_and_leaves(155, 5)), judged(settles_and_leaves(4, 0.6))

    assert small.first_alarm == 250
    assert big.first_alarm is not None
    assert abs(big.first_alarm - 250) <= 5
    assert big.alarms[0].risk >= 0.5


@pytest.mark.parametrize(
    ("loss", "leap"),
    [
        (lambda i: 2.88 if i < 1 else 1e16 * random.Random(i).uniform(0.5, 2), 1),
        (lambda i: 1.47 if i < 1 else random.Random(i).gauss(14, 0.3), 1),
        (lambda i: random.Random(i).gauss(1.0 if i < 5 else 3.0, 0.02), 5),
        (lambda i: random.Random(i).gauss(-0.5 if i < 8 else 4.0, 0.05), 8),
        (lambda i: random.Random(i).gauss(2.3 if i < 15 else 23, 0.02), 15),
        (lambda i: random.Random(i).gauss(2.3 if i < 20 else 6.9, 0.02), 20),
    ],
)
def test_a_leap_in_the_first_rows_is_warned_of_and_an_alarm_once_it_stays(
    loss: Callable[[int], float], leap: int
) -> None:
    result = judged(loss, 60)

    assert max(result.risk[:leap], default=0.0) == 0.0
    assert result.risk[leap] >= 0.3
    assert result.first_alarm is not None
    assert leap <= result.first_alarm <= leap + 3
    assert result.first_treatment is None or result.first_treatment >= 10


def test_the_reason_says_how_little_was_known() -> None:
    (alarm,) = judged(lambda i: 1.5 if i < 1 else 15.0, 40).alarms

    assert alarm.reason == "the loss of 15 is 10 times the first row; no more is known yet"


def test_a_leap_that_comes_back_at_once_stays_a_warning() -> None:
    result = judged(lambda i: 9e5 if i in (8, 9) else 0.9, 60)

    assert result.risk[8] >= 0.3
    assert result.alarms == []
    assert max(result.risk[10:]) == 0.0


@pytest.mark.parametrize(
    "loss",
    [
        lambda i: 10.0 * 0.5**i + 0.05,  # falls fast
        lambda i: 2.3 * (2.2 if 1 <= i <= 6 else 1.0) * 0.97**i,  # a warm-up's bump
        lambda i: (1.0, 30.0, 6.0, 2.0)[(5 * i + i // 3) % 4],  # batches of very different length
        lambda i: math.exp(random.Random(i).gauss(0, 2.5)),  # targets with heavy tails
    ],
)
def test_young_healthy_runs_stay_silent(loss: Callable[[int], float]) -> None:
    assert judged(loss, 21).alarms == []


def test_a_copy_of_the_state_goes_on_alike() -> None:
    watch, copy = FirstRows(), FirstRows()
    for row in range(7):
        watch.update(1.0 if row < 4 else 2 * LEAP)

    copy.load_state_dict(watch.state_dict())
    for each in (watch, copy):
        each.update(2 * LEAP)

    assert watch.found
    assert copy.found
    assert watch.state_dict() == copy.state_dict()


def test_values_at_the_ends_of_the_range_are_survived() -> None:
    ends = [0.0, 5e-324, 1e-310, 1e308, -1e308, 1.0]
    for seed in range(20):
        chosen = random.Random(seed)
        few = chosen.sample(ends, 3)

        result = judged(lambda _, few=few, chosen=chosen: chosen.choice(few), 50)

        assert all(0.0 <= risk <= 1.0 for risk in result.risk)
