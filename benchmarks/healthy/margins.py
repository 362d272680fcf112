"""Losses with a margin: most batches are at zero after a while, single ones are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import Update, fit


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


def triplet(steps: int) -> Iterator[Update]:
    """Every 60th batch has hard negatives."""
    model, loss = mlp(16, 64, 16), nn.TripletMarginLoss(margin=1.0)
    centres = 3 * torch.randn(8, 16)

    def loss_of(step: int) -> torch.Tensor:
        kind = torch.randint(0, 8, (16,))
        other = (kind + torch.randint(1, 8, (16,))) % 8
        anchor, same, far = (centres[i] + 0.7 * torch.randn(16, 16) for i in (kind, kind, other))
        if step % 60 == 59:
            far = centres[kind] + 1.2 * torch.randn(16, 16) + 0.4
        return loss(model(anchor), model(same), model(far))

    return fit(model, loss_of, steps)


def triplet_of_two(steps: int) -> Iterator[Update]:
    """Two triplets a batch, by SGD: a loss above zero comes at random."""
    model = mlp(8, 32, 8)
    centres = 2 * torch.randn(4, 8)

    def loss_of(step: int) -> torch.Tensor:
        kind = torch.randint(0, 4, (2,))
        other = (kind + torch.randint(1, 4, (2,))) % 4
        views = [model(centres[i] + 0.6 * torch.randn(2, 8)) for i in (kind, kind, other)]
        return F.triplet_margin_loss(*views, margin=0.5)

    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    return fit(model, loss_of, steps, optimizer=optimizer)


def hinge(steps: int) -> Iterator[Update]:
    """A support vector machine on classes that hardly overlap, one batch of four at a time."""
    model = nn.Linear(10, 1)
    side = torch.randn(10)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(4, 10)
        y = (x @ side).sign()
        return (1 - y * model(x + 0.1 * y[:, None] * side)[:, 0]).clamp_min(0).mean()

    optimizer = torch.optim.SGD(model.parameters(), 0.05, weight_decay=1e-4)
    return fit(model, loss_of, steps, optimizer=optimizer)


def contrastive(steps: int) -> Iterator[Update]:
    """Pairs that are the same are pulled together, others pushed apart up to a margin."""
    model = mlp(12, 32, 4)
    centres = torch.randn(6, 12) * 2

    def loss_of(step: int) -> torch.Tensor:
        one, two = torch.randint(0, 6, (2, 8))
        noise = 0.0 if step % 7 else 0.5
        first, second = (model(centres[i] + noise * torch.randn(8, 12)) for i in (one, two))
        apart = (first - second).norm(dim=1)
        pull, push = apart.square(), (1.0 - apart).clamp_min(0).square()
        return torch.where(one == two, pull, push).mean()

    return fit(model, loss_of, steps, lr=3e-3)


def perceptron(steps: int) -> Iterator[Update]:
    """One sample at a time: no loss at all where the sign is right."""
    model = nn.Linear(6, 1, bias=False)
    side = torch.randn(6)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(1, 6)
        y = (x @ side).sign()
        return F.relu(-y * model(x)[:, 0]).mean()

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return fit(model, loss_of, steps, optimizer=optimizer)


def ranking(steps: int) -> Iterator[Update]:
    """Pairs in an order that a linear model finds exactly; every 40th batch is harder."""
    model = mlp(8, 24, 1)
    taste = torch.randn(8)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(2, 8, 8) * (1.0 if step % 40 else 0.2)
        order = ((x[0] - x[1]) @ taste).sign()
        return F.margin_ranking_loss(model(x[0])[:, 0], model(x[1])[:, 0], order, margin=0.1)

    return fit(model, loss_of, steps, lr=3e-3)


def saturating(steps: int) -> Iterator[Update]:
    """An insensitive loss: nothing within a tube around the target, and rare outliers."""
    model = mlp(4, 32, 1)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(16, 4)
        y = x[:, 0].sin() + 0.5 * x[:, 1]
        if step % 90 == 89:
            y = y + (torch.rand(16) < 0.1) * 3.0
        return ((model(x)[:, 0] - y).abs() - 0.3).clamp_min(0).mean()

    return fit(model, loss_of, steps, lr=3e-3)


TRAININGS = {
    "triplet": triplet,
    "triplet_of_two": triplet_of_two,
    "hinge": hinge,
    "contrastive": contrastive,
    "perceptron": perceptron,
    "ranking": ranking,
    "saturating": saturating,
}
