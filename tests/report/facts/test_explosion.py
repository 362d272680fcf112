"""The shape of a loss explosion."""

from __future__ import annotations

import math

import numpy as np
import pytest

from supervisor.report.facts.explosion import find_explosion
from supervisor.report.facts.step_table import StepTable, build_step_table
from supervisor.storage.steps.flight_recorder import LOSS_SEEN, STEP_DTYPE


def table(losses: list[float]) -> StepTable:
    rows = np.zeros(len(losses), dtype=STEP_DTYPE)
    rows["step"] = np.arange(len(losses))
    rows["loss"] = losses
    rows["flags"] = LOSS_SEEN
    return build_step_table(rows)


def calm(steps: int = 80, level: float = 2.0) -> list[float]:
    noise = np.random.default_rng(1).standard_normal(steps)
    return [float(value) for value in level + 0.02 * noise]


@pytest.mark.parametrize("last", [60.0, math.nan, math.inf])
def test_a_loss_that_leaves_its_level_at_once_is_a_sudden_jump(last: float) -> None:
    found = find_explosion(table([*calm(), last]))

    assert found is not None
    assert (found.shape, found.onset_step, found.peak_step) == ("sudden_jump", 80, 80)
    assert "bad batch" in found.likely_causes[0]


def test_a_level_that_is_reached_at_once_and_only_varies_is_a_sudden_jump() -> None:
    found = find_explosion(table([*calm(), 239.0, 241.0, 236.0, 244.0, 270.0]))

    assert found is not None
    assert (found.shape, found.onset_step, found.peak_step) == ("sudden_jump", 80, 84)


def test_a_steady_climb_is_exponential_growth_with_its_doubling_time() -> None:
    climb = [2.0 + 0.5 * 2 ** (step / 3) for step in range(25)]

    found = find_explosion(table([*calm(), *climb]))

    assert found is not None
    assert found.shape == "exponential_growth"
    assert found.onset_step in range(78, 86)
    assert "doubling about every 3 steps" in found.sentence


def test_growing_swings_are_an_oscillating_divergence() -> None:
    swings = [4.0 + 1.3**step * (1.0 if step % 2 else 0.2) for step in range(24)]

    found = find_explosion(table([*calm(), *swings]))

    assert found is not None
    assert found.shape == "oscillating_divergence"
    assert "optimizer" in found.likely_causes[0]


def test_a_falling_loss_with_noise_has_no_explosion() -> None:
    falling = [4.0 * math.exp(-step / 50) + 0.1 + value for step, value in enumerate(calm(200))]

    assert find_explosion(table(falling)) is None


@pytest.mark.parametrize("losses", [[], [1.0], [math.nan] * 30, [1.0, 2.0, 900.0]])
def test_too_little_to_judge_is_no_explosion(losses: list[float]) -> None:
    assert find_explosion(table(losses)) is None


def test_what_came_after_the_step_in_question_is_left_out() -> None:
    losses = [*calm(), 50.0, *calm(), 900.0]

    found = find_explosion(table(losses), until=100)

    assert found is not None
    assert found.peak_step == 80
