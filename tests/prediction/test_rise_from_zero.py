from __future__ import annotations

import math
import random

import pytest

from supervisor.analysis.backtest.backtest import BacktestResult, backtest_records
from supervisor.config import load_policy
from supervisor.records import StepRecord
from supervisor.settings import RunSettings


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
