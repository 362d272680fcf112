"""What `supervisor.observe` was given, or a model exposed, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

ACTIVE_VARIANCE = 0.01
"""A latent unit is active when the variance over the data of its posterior mean exceeds this
(Burda, Grosse, Salakhutdinov, ICLR 2016, section 5.2)."""

NO_ADVANTAGE = 1e-6
"""Advantages at or below it in size teach nothing."""


def observed_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns one number a value, itself or the mean of a tensor, and `derived_numbers`.

    Raises:
        TypeError: a value is no number.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().float().mean()
        found[name] = float(value)
    return found | derived_numbers(values)


def derived_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the figures that detectors watch, of tensors with a known meaning.

    * ``mu``, ``logvar`` (batch x units) of a Gaussian posterior: ``kl`` (nats, mean over the batch
      of the sum over units), ``latent_variance``, ``active_units`` (a share).
    * ``chosen_rewards``, ``rejected_rewards`` (one a pair) of a reward model: ``reward_margin``,
      ``reward_accuracy``, ``reward_confidence`` (mean probability of the pair's likelier order),
      ``reward_score`` (mean over both), ``reward_spread`` (their deviation).
    * ``rewards``: ``reward``, their mean.
    * ``advantages``: ``advantage_std``, ``zero_advantage_share``.
    """
    found: dict[str, float] = {}
    mu, logvar = values.get("mu"), values.get("logvar")
    if isinstance(mu, torch.Tensor) and isinstance(logvar, torch.Tensor) and mu.dim() > 1:
        found |= _latents(mu.detach().float(), logvar.detach().float())
    chosen, rejected = values.get("chosen_rewards"), values.get("rejected_rewards")
    if isinstance(chosen, torch.Tensor) and isinstance(rejected, torch.Tensor):
        found |= _preferences(chosen.detach().float(), rejected.detach().float())
    rewards, advantages = values.get("rewards"), values.get("advantages")
    if isinstance(rewards, torch.Tensor) and rewards.numel():
        found["reward"] = float(rewards.detach().float().mean())
    if isinstance(advantages, torch.Tensor) and advantages.numel() > 1:
        size = advantages.detach().float()
        found["advantage_std"] = float(size.std(unbiased=False))
        found["zero_advantage_share"] = float((size.abs() <= NO_ADVANTAGE).float().mean())
    return found


def _latents(mu: torch.Tensor, logvar: torch.Tensor) -> dict[str, float]:
    mu, logvar = mu.flatten(1), logvar.flatten(1)
    kl = -0.5 * (1.0 + logvar - mu.square() - logvar.exp()).sum(1).mean()
    spread = mu.var(0, unbiased=False)
    return {
        "kl": float(kl),
        "latent_variance": float(spread.mean()),
        "active_units": float((spread > ACTIVE_VARIANCE).float().mean()),
    }


def _preferences(chosen: torch.Tensor, rejected: torch.Tensor) -> dict[str, float]:
    if chosen.shape != rejected.shape or not chosen.numel():
        return {}
    margin = (chosen - rejected).flatten()
    odds = torch.sigmoid(margin)
    both = torch.stack([chosen.flatten(), rejected.flatten()])
    figures = torch.stack(
        [
            margin.mean(),
            (margin > 0).float().mean(),
            torch.maximum(odds, 1.0 - odds).mean(),
            both.mean(),
            both.std(unbiased=False),
        ]
    )
    names = ("margin", "accuracy", "confidence", "score", "spread")
    return {f"reward_{name}": float(v) for name, v in zip(names, figures, strict=True)}
