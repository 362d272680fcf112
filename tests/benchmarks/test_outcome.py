"""The corpus' labels come from how a run ended: `benchmarks.corpus.outcome`."""

from __future__ import annotations

import numpy as np

from benchmarks.corpus.outcome import judge
from benchmarks.corpus.recipe import Recipe
from benchmarks.corpus.trace import Trace

RECIPE = Recipe(architecture="mlp", condition="plain", sick=False, optimizer="sgd", lr=0.1)


def trace(losses: np.ndarray, **more: object) -> Trace:
    noise = np.random.default_rng(0).normal(0.0, 0.05, len(losses))
    columns = {
        "loss": losses + noise,
        "outcome": losses + noise,
        "grad_norm": np.ones(len(losses)),
        "lr": np.full(len(losses), 0.1),
        "loss_scale": np.full(len(losses), np.nan),
        "weights_finite": np.ones(len(losses)),
        **more,
    }
    return Trace(
        recipe=RECIPE, columns=columns, observed={}, inputs={}, live={}, intended=(), batch=8
    )


def falling(steps: int = 400) -> np.ndarray:
    return 1.0 + 1.5 * np.exp(-np.arange(steps) / 60)


def test_a_run_that_learns_is_healthy() -> None:
    assert judge(trace(falling())).label == "healthy"


def test_a_loss_that_leaves_for_good_has_crashed_where_it_left() -> None:
    losses = falling()
    losses[250:] += np.minimum(1.5, 0.05 * np.arange(150))

    outcome = judge(trace(losses))

    assert outcome.label == "diverged"
    assert 245 <= outcome.onset <= outcome.crash <= 260
    assert 270 <= outcome.peak <= 285


def test_a_loss_that_comes_back_has_not() -> None:
    losses = falling()
    losses[250:280] += 1.5

    outcome = judge(trace(losses))

    assert outcome.label == "healthy"
    assert [first <= 250 <= last for first, last in outcome.excursions] == [True]


def test_a_loss_that_is_not_finite_is_a_crash_visible_from_its_rise_on() -> None:
    losses = falling(300)
    losses[290:] = [2, 4, 8, 16, 32, 64, np.nan, np.nan, np.nan, np.nan]

    outcome = judge(trace(losses))

    assert (outcome.label, outcome.onset, outcome.peak) == ("nonfinite", 290, 296)


def test_updates_that_a_scaler_leaves_out_for_ever_are_a_crash() -> None:
    norms = np.ones(400)
    norms[300:] = np.inf
    scale = np.full(400, 1024.0)

    outcome = judge(trace(falling(), grad_norm=norms, loss_scale=scale))

    assert (outcome.label, outcome.onset, outcome.peak) == ("stalled", 300, 329)


def test_a_run_that_never_learned_is_no_crash() -> None:
    assert judge(trace(np.full(400, 2.3))).label == "stuck"
