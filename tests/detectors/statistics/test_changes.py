"""Other data, damaged data, an odd batch."""

from __future__ import annotations

import json
import math

import pytest

from supervisor.config import load_policy
from supervisor.detectors.objective import OtherDataDetector
from supervisor.detectors.statistics.changes import (
    OTHER_SHAPE,
    REST,
    SCALE,
    SHIFT,
    OtherData,
    RateTest,
)
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings


def _step(step: int, shift: float = 0.0, scale: float = 1.0, loss: float = 1.0) -> StepRecord:
    observed = {SHIFT: shift, SCALE: scale} if shift else {}
    return StepRecord(
        step=step, loss=loss, grad_norm=1.0, loss_seen=True, grad_norm_seen=True, observed=observed
    )


def _adopted(judge: OtherData, records: list[StepRecord]) -> list[int]:
    return [record.step for record in records if judge.update(record)]


def test_two_batches_in_a_row_are_other_data_and_one_is_an_odd_batch() -> None:
    judge = OtherData()

    assert _adopted(judge, [_step(7, 2.0), _step(8)]) == []
    assert _adopted(judge, [_step(9, 2.0), _step(10, 2.0)]) == [10]


@pytest.mark.parametrize("scale", [30.0, 0.01])
def test_numbers_out_of_their_range_are_no_change_on_purpose(scale: float) -> None:
    assert _adopted(OtherData(), [_step(i, 2.0, scale) for i in range(5)]) == []


def test_what_goes_on_changing_is_adopted_once() -> None:
    records = [_step(i, 2.0) for i in range(REST)]

    assert _adopted(OtherData(), records) == [1]


def test_another_shape_comes_as_often_as_the_script_wants() -> None:
    judge = OtherData()
    records = [_step(i, OTHER_SHAPE if i in (3, 4, 30, 31) else 0.0) for i in range(REST)]

    assert _adopted(judge, records) == [4, 31]


def _alarms(shifts: dict[int, float], loss: float) -> tuple[list[int], list[int]]:
    """Steps in alarm, and those whose level was adopted, of a loss of 1 that leaps at step 60."""
    pipeline = Pipeline(RunSettings(), load_policy())
    alarms, adopted = [], []
    for step in range(90):
        noise = 0.02 * (step * 7 % 5)
        height = (loss if step >= 60 else 1.0) + noise
        judged = pipeline.update(_step(step, shifts.get(step, 0.0), loss=height))
        alarms += [step] * judged.risk.alarm
        adopted += [step] * bool(judged.other_data)
    return alarms, adopted


def test_a_loss_that_leaps_with_its_data_is_no_alarm() -> None:
    alarms, adopted = _alarms({60: 3.0, 61: 3.0}, 4.0)

    assert (alarms, adopted) == ([], [61])


def test_a_loss_that_leaps_with_the_same_data_is_one_at_once() -> None:
    alarms, _ = _alarms({}, 4.0)

    assert alarms[0] == 60


def test_behind_a_single_odd_batch_the_alarm_comes_a_step_later() -> None:
    alarms, adopted = _alarms({60: 3.0}, 4.0)

    assert (alarms[0], adopted) == (61, [])


def test_inputs_that_are_not_normalised_are_told_at_once() -> None:
    detector = OtherDataDetector()
    detector.update(_step(0))

    alert = detector.update(_step(1, 5.0, 255.0))

    assert alert is not None
    assert (alert.kind, alert.value) == ("inputs_out_of_range", 255.0)


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
