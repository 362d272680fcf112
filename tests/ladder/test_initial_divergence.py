"""When the start of a training has failed, and when its first loss was only a lucky one."""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.healthy import KINDS
from supervisor.ladder.initial_divergence import InitialDivergence


def found_at(losses: list[float]) -> int:
    """The step at which the start is said to have failed; -1 for never."""
    watch = InitialDivergence()
    for step, loss in enumerate(losses):
        watch.update(step, loss)
        if watch.found:
            return step
    return -1


def test_a_lucky_first_sample_is_no_start_that_failed() -> None:
    """Squared errors of single samples, which fall as they should: the first was nearly zero."""
    chance = random.Random(3)
    losses = [0.05] + [(chance.gauss(0, 3) * 0.95**step) ** 2 for step in range(60)]

    assert losses[1] > 1.5 * losses[0]
    assert found_at(losses) == -1


def test_where_losses_like_the_first_come_again_nothing_has_blown_up() -> None:
    losses = [0.1] + [5.0 if step % 12 else 0.2 for step in range(1, 60)]

    assert found_at(losses) == 10
    assert found_at([0.1, 3.0, 0.2, *losses[1:]]) == -1


def test_losses_that_scatter_as_far_as_the_first_ones_leapt_say_nothing() -> None:
    chance = random.Random(0)
    losses = [2.0] + [2.0 * chance.choice([0.5, 1.0, 4.0]) for _ in range(60)]
    losses[1:6] = [8.0, 2.0, 8.0, 2.0, 8.0]

    assert found_at(losses) == -1


def test_losses_that_leapt_and_learned_nothing_since_are_found() -> None:
    losses = [2.4, 7.3, 5.2] + [2.35 + 0.05 * (step % 3) for step in range(60)]

    assert 0 < found_at(losses) < 60


def test_losses_that_stay_many_times_above_the_first_are_found() -> None:
    losses = [0.8, 52.0, 288.0, 1160.0] + [60.0 - step for step in range(30)]

    assert found_at(losses) == 10


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["online_regression", "actor_critic", "dqn", "tasks_in_turn"])
def test_healthy_starts_whose_first_loss_may_be_any_are_believed(kind: str, seed: int) -> None:
    torch.manual_seed(seed)

    assert found_at([float(update.loss) for update in KINDS[kind](62)]) == -1
