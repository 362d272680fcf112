"""Weights that begin near zero, and a first loss that may be any: single samples.

Beside their first size such weights go far, and beside one lucky sample the losses go up.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import Update, fit


def recommender(steps: int) -> Iterator[Update]:
    """Matrix factorisation from weights of 0.01, one rating at a time."""
    table = torch.randn(20, 3) @ torch.randn(3, 30)
    model = nn.ModuleDict({"u": nn.Embedding(20, 8), "v": nn.Embedding(30, 8)})
    for weight in model.parameters():
        nn.init.normal_(weight, 0, 0.01)

    def loss_of(step: int) -> torch.Tensor:
        i, j = torch.randint(0, 20, (1,)), torch.randint(0, 30, (1,))
        return (table[i, j] - (model["u"](i) * model["v"](j)).sum(1)).square().mean()

    return fit(model, loss_of, steps, lr=2e-2)


def distances(steps: int) -> Iterator[Update]:
    """An embedding that is to lie as far apart as given distances say, two pairs at a time."""
    model = nn.Embedding(50, 8)
    nn.init.normal_(model.weight, 0, 0.01)

    def loss_of(step: int) -> torch.Tensor:
        one, two = torch.randint(0, 50, (2, 2))
        aim = (one - two).abs().float() / 10
        return F.mse_loss((model(one) - model(two)).norm(dim=1), aim)

    return fit(model, loss_of, steps, lr=2e-2)


def online_regression(steps: int) -> Iterator[Update]:
    """A line through ten features, one sample at a time."""
    model = nn.Linear(10, 1)
    nn.init.normal_(model.weight, 0, 0.01)
    nn.init.zeros_(model.bias)
    slope = torch.randn(10)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(1, 10)
        return F.mse_loss(model(x)[:, 0], x @ slope + 0.1 * torch.randn(1))

    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    return fit(model, loss_of, steps, optimizer=optimizer)


TRAININGS = {
    "recommender": recommender,
    "distances": distances,
    "online_regression": online_regression,
}
