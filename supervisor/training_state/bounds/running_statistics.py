"""Running means and variances: what the batches that a normalisation has seen make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

AGREES = 0.25
"""Of the largest value that went into an element: rounding in BF16 is a tenth of it at most."""


class BatchStatistics(NamedTuple):
    """Of one batch, as torch has kept them for the backward.

    Attributes:
        inverse_std: one over the root of the variance and `eps`.
        given: values of the whole batch.
        momentum: the batch's share in the running values.
    """

    mean: torch.Tensor
    inverse_std: torch.Tensor
    given: int
    momentum: float
    eps: float


@dataclass(frozen=True, slots=True)
class Followed:
    """A running value, computed from an earlier one and all batches since; on the host, FP32.

    Attributes:
        value: what it must be.
        scale: the largest that went into each element.
        keep: share of the earlier value that is left in it.
    """

    value: torch.Tensor
    scale: torch.Tensor
    keep: float

    @property
    def is_finite(self) -> bool:
        return bool(torch.isfinite(self.value).all() and torch.isfinite(self.scale).all())

    def differs(self, now: torch.Tensor) -> torch.Tensor:
        """Returns which elements of `now` cannot have come from these batches."""
        return ~((now - self.value).abs() <= AGREES * self.scale)


def followed_mean(then: torch.Tensor, batches: Sequence[BatchStatistics]) -> Followed:
    means = [batch.mean for batch in batches]
    return _follow(then, batches, _on_host(means, then), 0.0)


def followed_variance(then: torch.Tensor, batches: Sequence[BatchStatistics]) -> Followed:
    """Torch normalises by the variance of the batch, but keeps the unbiased one."""
    roots = _on_host([batch.inverse_std for batch in batches], then)
    eps = _column([batch.eps for batch in batches])
    counts = [batch.given // then.numel() for batch in batches]
    unbiased = _column([count / max(1, count - 1) for count in counts])
    values = (1 / roots.square() - eps).clamp(min=0) * unbiased
    return _follow(then, batches, values, max((batch.eps for batch in batches), default=0.0))


def _follow(
    then: torch.Tensor, batches: Sequence[BatchStatistics], values: torch.Tensor, least: float
) -> Followed:
    keep, shares = 1.0, []
    for batch in reversed(batches):
        shares.append(batch.momentum * keep)
        keep *= 1 - batch.momentum
    start = then.detach().float()
    value = keep * start + (_column(shares[::-1]) * values).sum(0)
    scale = torch.cat([start[None], values]).abs().amax(0) + least
    return Followed(value, scale, keep)


def _on_host(tensors: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    if not tensors:
        return torch.empty(0, like.numel())
    return torch.stack([*tensors]).float().cpu()


def _column(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1)
