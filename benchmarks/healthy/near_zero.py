"""Losses that reach zero, or are tiny from the beginning."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import Update, fit
from benchmarks.healthy.margins import mlp


def overfit_cnn(steps: int) -> Iterator[Update]:
    """128 labelled pictures, learned by heart: the loss is 0.0 in the end."""
    pictures, labels = torch.randn(128, 1, 8, 8), torch.randint(0, 4, (128,))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(),
        nn.Linear(64, 4),
    )  # fmt: skip

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(0, 128, (16,))
        return F.cross_entropy(model(pictures[rows]), labels[rows])

    return fit(model, loss_of, steps, lr=5e-3)


def overfit_mlp(steps: int) -> Iterator[Update]:
    """By heart, one wrong label among them: norms of 20 times their median come and go."""
    x = torch.randn(64, 8)
    y = (x[:, 0] > 0).long()
    y[5] = 1 - y[5]
    model = mlp(8, 64, 2)

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(0, 64, (8,))
        return F.cross_entropy(model(x[rows]), y[rows])

    return fit(model, loss_of, steps, lr=1e-2)


def sparse_reward(steps: int) -> Iterator[Update]:
    """REINFORCE where one action in many earns anything: most losses are exactly zero."""
    model = nn.Linear(4, 24)

    def loss_of(step: int) -> torch.Tensor:
        odds = model(torch.randn(4, 4)).log_softmax(1)
        action = torch.multinomial(odds.detach().exp(), 1)
        return -((action == 3).float() * odds.gather(1, action)).mean()

    return fit(model, loss_of, steps, lr=3e-3)


def tiny_scale(steps: int) -> Iterator[Update]:
    """A mean squared error in physical units: 1e-9 from the start, and falling."""
    model = mlp(4, 32, 1)
    with torch.no_grad():
        model[-1].weight.mul_(1e-4)
        model[-1].bias.zero_()

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 4)
        return F.mse_loss(model(x)[:, 0], 1e-4 * (x[:, 0].sin() + 0.3 * torch.randn(32)))

    return fit(model, loss_of, steps, lr=1e-5)


def exact_line(steps: int) -> Iterator[Update]:
    """Linear regression to machine precision: the loss falls by fifteen orders of magnitude."""
    model = nn.Linear(3, 1)
    slope = torch.randn(3)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(16, 3)
        return F.mse_loss(model(x)[:, 0], x @ slope + 0.5)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return fit(model, loss_of, steps, optimizer=optimizer)


def factors(steps: int) -> Iterator[Update]:
    """Matrix factorisation one entry at a time, without noise: per-sample losses span decades."""
    table = torch.randn(20, 3) @ torch.randn(3, 30)
    model = nn.ModuleDict({"u": nn.Embedding(20, 4), "v": nn.Embedding(30, 4)})

    def loss_of(step: int) -> torch.Tensor:
        i, j = torch.randint(0, 20, (1,)), torch.randint(0, 30, (1,))
        return (table[i, j] - (model["u"](i) * model["v"](j)).sum(1)).square().mean()

    return fit(model, loss_of, steps, lr=2e-2)


def masked(steps: int) -> Iterator[Update]:
    """A loss over masked places only, of which two batches in three have none."""
    model = mlp(8, 32, 8)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(8, 8).cumsum(1)
        mask = (torch.rand(8, 8) < 0.1) & (torch.rand(()) < 0.33)
        wrong = (model(x * ~mask) - x).square() * mask
        return wrong.sum() / mask.sum().clamp_min(1)

    return fit(model, loss_of, steps, lr=3e-3)


TRAININGS = {
    "overfit_cnn": overfit_cnn,
    "overfit_mlp": overfit_mlp,
    "sparse_reward": sparse_reward,
    "tiny_scale": tiny_scale,
    "exact_line": exact_line,
    "factors": factors,
    "masked": masked,
}
