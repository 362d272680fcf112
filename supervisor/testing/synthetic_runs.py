"""Made-up trainings, healthy and troubled, without torch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from supervisor.records import NAN, StepRecord

HEALTHY_KINDS = (
    "healthy",
    "heavy_tailed",
    "fp16_overflow",
    "level_shift",
    "warm_restarts",
    "negative_loss",
    "near_zero",
    "bimodal",
    "batch_size_one",
    "grokking",
    "learning_rate_drop",
)
"""Runs without trouble, some of which look like it; nothing should be treated in them."""

TROUBLED_KINDS = (
    "nan",
    "nan_forever",
    "nan_gradient",
    "spike",
    "gradient_spike",
    "leap",
    "divergence",
    "slow_divergence",
    "loss_scale_decay",
)
"""Runs with trouble that begins at half of their steps."""


def synthetic_run(kind: str, steps: int = 600, seed: int = 0) -> Iterator[StepRecord]:
    """Yields the records of a made-up training of `kind` (see the two lists above).

    The loss falls from 4 to 2 as that of a small language model does, with 2 % noise; trouble,
    where there is any, begins at step ``steps // 2``. The same arguments give the same records.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in (*HEALTHY_KINDS, *TROUBLED_KINDS):
        known = ", ".join((*HEALTHY_KINDS, *TROUBLED_KINDS))
        raise ValueError(f"synthetic_run: unknown kind {kind!r}: choose from {known}")
    rng = random.Random(f"{kind}:{seed}")
    shape = _SHAPES.get(kind)
    for step in range(steps):
        record = _healthy_step(step, rng)
        yield shape(record, step - steps // 2, rng) if shape is not None else record


def _healthy_step(step: int, rng: random.Random) -> StepRecord:
    loss = (2.0 + 2.0 * math.exp(-step / 60)) * math.exp(rng.gauss(0.0, 0.02))
    return StepRecord(
        step=step,
        loss=loss,
        grad_norm=(0.8 + 2.0 * math.exp(-step / 30)) * math.exp(rng.gauss(0.0, 0.15)),
        lr=1e-3,
        step_time_s=0.01,
        batch_size=32,
        loss_seen=True,
        grad_norm_seen=True,
    )


def _heavy_tailed(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    factor = 1.0 + 0.3 * rng.random() if rng.random() < 0.01 else 1.0
    norm = 3.0 if rng.random() < 0.01 else 1.0
    return replace(record, loss=record.loss * factor, grad_norm=record.grad_norm * norm)


def _fp16_overflow(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    scale = 65536.0 if late < 0 else 32768.0
    if late in (0, -200):
        return replace(record, grad_norm=math.inf, loss_scale=65536.0, scaler_skipped=True)
    return replace(record, loss_scale=scale)


def _level_shift(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=record.loss * (1.12 if late >= 0 else 1.0))


def _warm_restarts(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    phase = (record.step % 150) / 150
    lr = 1e-3 * (0.5 + 0.5 * math.cos(math.pi * phase))
    rise = 1.0 + 0.1 * (lr / 1e-3) * (1.0 if record.step >= 150 else 0.0)
    return replace(record, lr=lr, loss=record.loss * rise)


def _negative_loss(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=record.loss - 2.5)


def _near_zero(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=1e-6 * math.exp(rng.gauss(0.0, 0.5)))


def _bimodal(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=record.loss * (1.4 if rng.random() < 0.5 else 1.0))


def _batch_size_one(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=record.loss * math.exp(rng.gauss(0.0, 0.5)), batch_size=1)


def _grokking(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    drop = 1.0 if late < 0 else max(1e-3, math.exp(-late / 20))
    return replace(record, loss=record.loss * drop, grad_norm=record.grad_norm * drop)


def _learning_rate_drop(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    if late < 0:
        return record
    return replace(record, lr=1e-4, loss=record.loss * 0.85)


def _nan(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=NAN, grad_norm=NAN) if late == 0 else record


def _nan_forever(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=NAN, grad_norm=NAN) if late >= 0 else record


def _nan_gradient(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, grad_norm=NAN) if late == 0 else record


def _spike(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=record.loss * 1e4, grad_norm=1e4) if late == 0 else record


def _gradient_spike(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, grad_norm=record.grad_norm * 100) if late == 0 else record


def _leap(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    if late < 0:
        return record
    return replace(record, loss=record.loss * 1.8, grad_norm=record.grad_norm * 3)


def _divergence(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    growth = math.exp(min(0.1 * max(0, late), 50.0))
    return replace(record, loss=record.loss * growth, grad_norm=record.grad_norm * growth)


def _slow_divergence(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    return replace(record, loss=record.loss * math.exp(0.0015 * max(0, late)))


def _loss_scale_decay(record: StepRecord, late: int, rng: random.Random) -> StepRecord:
    halvings = max(0, late // 3)
    overflows = late >= 0 and late % 3 == 0
    return replace(
        record,
        grad_norm=math.inf if overflows else record.grad_norm,
        loss_scale=65536.0 / 2.0 ** min(halvings, 40),
        scaler_skipped=overflows,
    )


_SHAPES: dict[str, Callable[[StepRecord, int, random.Random], StepRecord]] = {
    "heavy_tailed": _heavy_tailed,
    "fp16_overflow": _fp16_overflow,
    "level_shift": _level_shift,
    "warm_restarts": _warm_restarts,
    "negative_loss": _negative_loss,
    "near_zero": _near_zero,
    "bimodal": _bimodal,
    "batch_size_one": _batch_size_one,
    "grokking": _grokking,
    "learning_rate_drop": _learning_rate_drop,
    "nan": _nan,
    "nan_forever": _nan_forever,
    "nan_gradient": _nan_gradient,
    "spike": _spike,
    "gradient_spike": _gradient_spike,
    "leap": _leap,
    "divergence": _divergence,
    "slow_divergence": _slow_divergence,
    "loss_scale_decay": _loss_scale_decay,
}
