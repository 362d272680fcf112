"""What makes a run easy, hard or sick. Each is called before every step and says how it is then."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from benchmarks.corpus.bench import Bench

WARMUP = 20


def plain(bench: Bench, step: int) -> None:
    """Warm-up over 20 steps, then a constant rate; with an odd seed it falls by a cosine."""
    bench.lr_factor = min(1.0, (step + 1) / WARMUP)
    if bench.recipe.seed % 2:
        bench.lr_factor *= 0.55 + 0.45 * math.cos(math.pi * step / bench.recipe.steps)


def no_warmup(bench: Bench, step: int) -> None:
    bench.lr_factor = 1.0


def warm_restarts(bench: Bench, step: int) -> None:
    """Cosine that begins anew every quarter of the run."""
    period = bench.recipe.steps // 4
    bench.lr_factor = 0.55 + 0.45 * math.cos(math.pi * (step % period) / period)
    bench.lr_factor *= min(1.0, (step + 1) / WARMUP)


def lr_drop(bench: Bench, step: int) -> None:
    """A tenth of the rate from `at` on."""
    plain(bench, step)
    bench.lr_factor *= 0.1 if step >= bench.at else 1.0


def noisy_labels(bench: Bench, step: int) -> None:
    plain(bench, step)
    bench.task.data.label_noise = bench.recipe.severity


def small_batch(bench: Bench, step: int) -> None:
    plain(bench, step)
    bench.task.data.batch = int(bench.recipe.severity)


def few_samples(bench: Bench, step: int) -> None:
    """So few samples that the loss goes towards zero."""
    plain(bench, step)
    bench.task.data.distinct = int(bench.recipe.severity)


def curriculum(bench: Bench, step: int) -> None:
    """From easy to all data at `at`, on purpose."""
    plain(bench, step)
    bench.task.data.level = float(step >= bench.at)
    if step == bench.at:
        bench.intended.append(step)


def mixup(bench: Bench, step: int) -> None:
    plain(bench, step)
    bench.task.data.mixup = 0.5


def bad_batch(bench: Bench, step: int) -> None:
    """A single batch, `severity` times too large."""
    plain(bench, step)
    bench.task.data.input_scale = bench.recipe.severity if step == bench.at else 1.0


def bad_initialisation(bench: Bench, step: int) -> None:
    plain(bench, step)
    if step == 0:
        with torch.no_grad():
            for parameter in bench.task.module.parameters():
                parameter.mul_(bench.recipe.severity)


def label_corruption(bench: Bench, step: int) -> None:
    """From `at` on a share of the labels is random."""
    plain(bench, step)
    bench.task.data.label_noise = bench.recipe.severity if step >= bench.at else 0.0


def label_drift(bench: Bench, step: int) -> None:
    """From `at` on, over 150 steps, more and more labels become random."""
    plain(bench, step)
    share = min(1.0, max(0.0, (step - bench.at) / 150))
    bench.task.data.label_noise = bench.recipe.severity * share


def data_corruption(bench: Bench, step: int) -> None:
    """From `at` on the inputs are not normalised."""
    plain(bench, step)
    bench.task.data.input_scale = bench.recipe.severity if step >= bench.at else 1.0


def fp16_overflow(bench: Bench, step: int) -> None:
    """From `at` on the inputs grow by `severity` a step, until half precision cannot hold them."""
    plain(bench, step)
    bench.task.data.input_scale = bench.recipe.severity ** max(0, step - bench.at)


def lr_grows(bench: Bench, step: int) -> None:
    """A schedule with the wrong sign: from `at` on the rate grows by `severity` a step."""
    plain(bench, step)
    bench.lr_factor *= bench.recipe.severity ** max(0, step - bench.at)


def lr_jump(bench: Bench, step: int) -> None:
    """A schedule that counts in other units: `severity` times the rate from `at` on."""
    plain(bench, step)
    bench.lr_factor *= bench.recipe.severity if step >= bench.at else 1.0


def accumulation_bug(bench: Bench, step: int) -> None:
    """From `at` on gradients are not zeroed any more."""
    plain(bench, step)
    bench.keep_gradients = step >= bench.at


def stale_second_moment(bench: Bench, step: int) -> None:
    """A second moment that forgets slowly, learned on a few easy samples; then all data."""
    plain(bench, step)
    bench.task.data.distinct = 8 if step < bench.at else 0
    if step == 0:
        for group in bench.optimizer.param_groups:
            group["betas"] = (0.9, 1 - 0.01 / bench.recipe.severity)
    if step == bench.at:
        bench.intended.append(step)


def momentum_too_high(bench: Bench, step: int) -> None:
    """Momentum 0.99 with the rate of momentum 0.9."""
    plain(bench, step)
    for group in bench.optimizer.param_groups:
        group["momentum"] = 0.99


def weight_corruption(bench: Bench, step: int) -> None:
    """At `at` one weight becomes `severity` times as large, as a flipped bit makes it."""
    plain(bench, step)
    if step == bench.at:
        matrices = [p for p in bench.task.module.parameters() if p.dim() > 1]
        target = matrices[bench.recipe.seed % len(matrices)].detach().view(-1)
        target[torch.argmax(target.abs())] *= bench.recipe.severity


def kl_weight(bench: Bench, step: int) -> None:
    """The KL term counts `severity` times from `at` on."""
    plain(bench, step)
    bench.task.data.kl_weight = bench.recipe.severity if step >= bench.at else 1.0


def entropy_collapse(bench: Bench, step: int) -> None:
    """Entropy is punished from `at` on."""
    plain(bench, step)
    bench.task.data.entropy_bonus = -bench.recipe.severity if step >= bench.at else 0.01


CONDITIONS: dict[str, Callable[[Bench, int], None]] = {
    "plain": plain,
    "high_lr": plain,
    "lr_too_high": plain,
    "exploding_recurrent": no_warmup,
    **{
        condition.__name__: condition
        for condition in (
            *(no_warmup, warm_restarts, lr_drop, noisy_labels, small_batch, few_samples),
            *(curriculum, mixup, bad_batch, bad_initialisation, label_corruption, label_drift),
            *(data_corruption, fp16_overflow, lr_grows, lr_jump, accumulation_bug),
            *(stale_second_moment, momentum_too_high, weight_corruption, kl_weight),
            entropy_collapse,
        )
    },
}
"""Key of a recipe → what it does. `high_lr` and `lr_too_high` differ by the recipe's rate alone."""
