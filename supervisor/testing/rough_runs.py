"""Records that are hard on detectors: impossible figures, and figures that never rest."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from supervisor.records import NAN, StepRecord

OBSERVED = (
    "kl",
    "latent_variance",
    "active_units",
    "recon_loss",
    "adam_rms",
    "dead_layers_share",
    "layer_gradient_max",
    "entropy",
    "update_ratio",
    "activation_max",
    "activation_range",
    "dead_units_share",
    "representation_spread",
    "attention_logit_max",
    "attention_entropy",
    "loader_wait_share",
    "reward",
    "reward_score",
    "reward_spread",
    "reward_accuracy",
    "reward_confidence",
    "kl_to_reference",
    "approx_kl",
    "zero_advantage_share",
    "advantage_std",
    "value_loss",
)
"""Observed values that built-in detectors look at."""


def hostile_run() -> Iterator[StepRecord]:
    """Yields records that break careless arithmetic: NaN, infinities, zeros, negative, missing."""
    values = (NAN, math.inf, -math.inf, 0.0, -0.0, -1.0, 1e-320, 1e308, 1.0)
    step = 0
    for value in values:
        for other in values:
            yield StepRecord(
                step=step,
                loss=value,
                grad_norm=other,
                lr=value,
                loss_scale=other,
                step_time_s=value,
                batch_size=step % 3,
                memory_gib=other,
                loss_seen=True,
                grad_norm_seen=True,
                observed=dict.fromkeys(OBSERVED, value),
            )
            yield StepRecord(step=step + 1)
            step += 2


def restless_run(steps: int = 1200, seed: int = 0) -> Iterator[StepRecord]:
    """Yields records of which every figure goes its own way: calm, far off, and not seen at all.

    Loss, norm, rate, scale, step time, batch size and all of `OBSERVED` change their level at times
    of their own, for 1 to 240 steps; memory grows for ever.
    """
    figures = [*OBSERVED, "loss", "grad_norm", "lr", "loss_scale", "step_time_s", "batch_size"]
    courses = {name: _course(name, seed) for name in figures}
    for step in range(steps):
        now = {name: next(course) for name, course in courses.items()}
        scale = now.pop("loss_scale")
        loss, norm, rate = now.pop("loss"), now.pop("grad_norm"), now.pop("lr")
        yield StepRecord(
            step=step,
            loss=loss,
            grad_norm=norm,
            lr=NAN if math.isnan(rate) else 1e-3 * round(8 * rate),
            loss_scale=NAN if math.isnan(scale) else 2.0 ** round(12 + math.log2(scale)),
            step_time_s=now.pop("step_time_s"),
            batch_size=0 if math.isnan(size := now.pop("batch_size")) else round(8 * size) + 8,
            memory_gib=1.0 + 0.001 * step,
            loss_seen=not math.isnan(loss),
            grad_norm_seen=not math.isnan(norm),
            observed={name: value for name, value in now.items() if not math.isnan(value)},
        )


def _course(name: str, seed: int) -> Iterator[float]:
    """One figure: around 0.5, with stretches far above or below, and such without it (NaN)."""
    rng = random.Random(f"{name}:{seed}")
    while True:
        for _ in range(rng.randint(20, 80)):
            yield 0.5 * math.exp(rng.gauss(0.0, 0.1))
        level = rng.choice((NAN, 1e-3, 0.03, 3.0, 30.0, 3e3))
        for _ in range(rng.choice((2, 5, 12, 30, 60, 240))):
            yield level * math.exp(rng.gauss(0.0, 0.1))
