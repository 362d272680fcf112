"""The interval between saves follows from what they cost this training."""

from __future__ import annotations

import math

import pytest

from supervisor.settings import CheckpointSettings
from supervisor.worker.checkpoints.save_interval import FIRST_COST_S, SaveInterval, daly
from supervisor.worker.core.budget import CHECKPOINTS

STEP_S = 0.005


@pytest.mark.parametrize(("cost", "between"), [(0.05, 60.0), (1.0, 120.0), (5.0, 60.0), (2.0, 3.0)])
def test_after_failures_the_interval_loses_the_least(cost: float, between: float) -> None:
    """Of the time: what saves cost, and on average half an interval at each failure; by Daly's
    model, in which failures come at any time, also while saving or restarting."""

    def useful(interval: float) -> float:
        return interval / (between * (math.exp((interval + cost) / between) - 1.0))

    best = max(useful(between * share / 1000.0) for share in range(1, 3000))

    assert useful(daly(cost, between)) >= 0.99 * best
    settings = CheckpointSettings(min_interval_s=0.0)
    seen = SaveInterval(settings, 1000.0, failures=4, trained_s=4.0 * between)
    seen.begun(10, 1000.0, cost, 0.0)
    seen.written(11, 1000.0, cost)
    assert seen.next_at == pytest.approx(1000.0 + daly(cost, between))


def test_short_attempts_save_in_their_first_third() -> None:
    for between in (2.0, 9.0, 60.0, 600.0):
        seen = SaveInterval(CheckpointSettings(), 0.0, failures=3, trained_s=3.0 * between)
        seen.begun(10, 0.0, between / 20.0, 0.0)
        seen.written(11, 0.0, 1.0)
        assert seen.next_at <= between / 3.0


def test_one_failure_long_ago_is_forgotten_while_the_training_goes_on() -> None:
    seen = SaveInterval(CheckpointSettings(), 0.0, failures=1, trained_s=30.0)
    early = seen.seconds()

    seen.begun(10_000, 36_000.0, 0.01, 0.0)

    assert early == pytest.approx(5.0)
    assert seen.seconds() == pytest.approx(daly(FIRST_COST_S, 36_030.0))


def test_the_first_save_comes_after_the_cost_that_is_assumed() -> None:
    interval = SaveInterval(CheckpointSettings(), 100.0)

    assert interval.next_at == pytest.approx(100.0 + math.sqrt(2 * 0.001 * 14400.0))


def test_steps_that_the_writing_held_up_are_part_of_the_cost() -> None:
    interval = SaveInterval(CheckpointSettings(), 0.0)

    interval.begun(10, 5.0, 0.001, STEP_S)
    assert interval.is_measuring
    interval.written(13, 5.0 + 3 * STEP_S + 0.024, 0.039)

    assert not interval.is_measuring
    assert interval.seconds() == pytest.approx(math.sqrt(2 * 0.025 * 14400.0))
    assert interval.next_at == pytest.approx(5.0 + interval.seconds())


def test_a_pause_of_the_script_is_not_the_writings_fault() -> None:
    interval = SaveInterval(CheckpointSettings(), 0.0)

    interval.begun(10, 5.0, 0.001, STEP_S)
    interval.written(11, 65.0, 0.039)  # an evaluation of a minute came between

    assert interval.seconds() == pytest.approx(math.sqrt(2 * 0.040 * 14400.0))


def test_steps_faster_than_usual_make_no_save_cheaper_than_its_copy() -> None:
    interval = SaveInterval(CheckpointSettings(), 0.0)

    interval.begun(10, 5.0, 0.002, STEP_S)
    interval.written(20, 5.0 + 2 * STEP_S, 0.039)

    assert interval.seconds() == pytest.approx(math.sqrt(2 * 0.002 * 14400.0))


def test_without_a_usual_step_the_copy_alone_is_known() -> None:
    interval = SaveInterval(CheckpointSettings(), 0.0)

    interval.begun(0, 5.0, 0.002, 0.0)
    interval.written(1, 9.0, 0.5)

    assert interval.seconds() == pytest.approx(math.sqrt(2 * 0.002 * 14400.0))


def test_costs_stay_within_their_share_of_the_run() -> None:
    settings = CheckpointSettings(max_overhead=0.01, mtbf_s=60.0)
    interval = SaveInterval(settings, 0.0)

    interval.begun(10, 5.0, 2.0, STEP_S)
    interval.written(11, 5.0 + STEP_S, 3.0)

    assert interval.seconds() == pytest.approx(2.0 / (CHECKPOINTS * 0.01))


def test_a_fixed_interval_is_kept_whatever_it_costs() -> None:
    interval = SaveInterval(CheckpointSettings(every_s=3.0), 0.0)

    interval.begun(10, 3.0, 2.0, STEP_S)
    interval.written(11, 9.0, 3.0)

    assert interval.next_at == pytest.approx(6.0)
