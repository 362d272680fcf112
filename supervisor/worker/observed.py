"""What `supervisor.observe` was given, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

ACTIVE_VARIANCE = 0.01
"""A latent unit is active when the variance over the data of its posterior mean exceeds this
(Burda, Grosse, Salakhutdinov, ICLR 2016, section 5.2)."""


def observed_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns one number a value: itself, or the mean of a tensor.

    ``mu`` and ``logvar`` (batch x units) of a Gaussian posterior become ``kl`` (nats, mean over the
    batch of the sum over units), ``latent_variance`` and ``active_units`` (a share).

    Raises:
        TypeError: a value is no number.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().float().mean()
        found[name] = float(value)
    mu, logvar = values.get("mu"), values.get("logvar")
    if isinstance(mu, torch.Tensor) and isinstance(logvar, torch.Tensor) and mu.dim() > 1:
        found.update(_latents(mu.detach().float(), logvar.detach().float()))
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
