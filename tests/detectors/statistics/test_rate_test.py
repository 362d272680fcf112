from __future__ import annotations

import json
import math

import pytest

from supervisor.config import load_policy
from supervisor.detectors.statistics.rate_test import RateTest
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings

STEPS = 100


def geometric(first: float, last: float, steps: int = STEPS) -> list[float]:
    return [first * (last / first) ** (step / steps) for step in range(steps + 1)]


def is_seen(rates: list[float]) -> list[bool]:
    test = RateTest()
    seen = []
    for rate in rates:
        test.update(rate)
        seen.append(test.is_on)
    return seen


@pytest.mark.parametrize(("first", "last"), [(1e-7, 10.0), (1e-8, 1.0), (1e-4, 1.0)])
def test_a_rate_that_grows_by_one_factor_is_a_test_until_it_stops(
    first: float, last: float
) -> None:
    seen = is_seen([1e-3, *geometric(first, last), 1e-3, 1e-3])

    assert seen.index(True) < 0.5 * STEPS
    assert all(seen[seen.index(True) : STEPS + 2])
    assert not any(seen[STEPS + 2 :])


@pytest.mark.parametrize(
    "rates",
    [
        [1e-3 * (step + 1) / STEPS for step in range(STEPS)],
        [1e-6 + 0.5e-3 * (1 - math.cos(math.pi * step / STEPS)) for step in range(STEPS)],
        [1e-3 * 0.95**step for step in range(STEPS)],
        [1e-3] * STEPS,
        [1e-3, 1e-1, 10.0, 1e3],
        [0.0, *geometric(1e-3, 2e-2)],
        [*[1e-3] * 20, *geometric(1e-3, 1.0)],  # creeps up: a fault
    ],
)
def test_warm_ups_and_schedules_are_no_test(rates: list[float]) -> None:
    assert not any(is_seen(rates))


def test_a_copy_goes_on_in_the_middle_of_a_test() -> None:
    test, copy = RateTest(), RateTest()
    rates = geometric(1e-6, 1.0)
    for rate in rates[:40]:
        test.update(rate)

    copy.load_state_dict(json.loads(json.dumps(test.state_dict())))

    assert [test.update(r) for r in rates[40:]] == [copy.update(r) for r in rates[40:]]


def test_a_run_that_diverges_in_a_range_test_is_not_treated_and_one_behind_it_is() -> None:
    rates = [*geometric(1e-6, 10.0), *[1e-2] * STEPS]
    losses = [
        *[1.0 + 0.01 * (step % 3) + 3.0 * max(0.0, rate - 0.1) for step, rate in enumerate(rates)],
        *[50.0] * 10,
    ]
    records = [
        StepRecord(step=step, loss=loss, lr=rate, loss_seen=True)
        for step, (loss, rate) in enumerate(zip(losses, [*rates, *[1e-2] * 10], strict=True))
    ]

    judged = list(Pipeline(RunSettings(), load_policy()).update_all(records))

    treated = [
        j.record.step for j in judged if j.decision and set(j.decision.actions) - {"checkpoint"}
    ]
    assert treated
    assert treated[0] >= len(rates)
    assert len([j for j in judged if j.rate_test]) == 1
