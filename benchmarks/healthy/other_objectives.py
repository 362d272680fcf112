"""What is minimised changes, or leaps: weights of terms, margins, penalties, temperatures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import Update, clusters, fit
from benchmarks.healthy.margins import mlp


def reweighted_tasks(steps: int) -> Iterator[Update]:
    """Three tasks, whose weights are drawn anew between 0.1 and 30 every 75 steps."""
    body, head = mlp(8, 48, 48), nn.Linear(48, 3)
    slopes, weights = torch.randn(8, 3), torch.ones(3)

    def loss_of(step: int) -> torch.Tensor:
        nonlocal weights
        if step % 75 == 0:
            weights = 10 ** (2.5 * torch.rand(3) - 1)
        x = torch.randn(32, 8)
        errors = (head(F.relu(body(x))) - (x @ slopes).sin()).square()
        return (weights * errors.mean(0)).sum()

    return fit(nn.ModuleList([body, head]), loss_of, steps, lr=3e-3)


def raised_margin(steps: int) -> Iterator[Update]:
    """Triplets: the hardest alone from 200 on, and a margin of 5 instead of 1 from 350 on."""
    model, draw = mlp(16, 48, 8), clusters(12, 16, batch=48)

    def loss_of(step: int) -> torch.Tensor:
        x, y = draw()
        seen = model(x)
        apart, same = torch.cdist(seen, seen), y[:, None] == y[None]
        if step >= 200:
            near, far = (apart * same).amax(1), apart.masked_fill(same, 1e9).amin(1)
        else:
            near = (apart * same).sum(1) / same.sum(1)
            far = (apart * ~same).sum(1) / (~same).sum(1)
        return F.relu(near - far + (1.0 if step < 350 else 5.0)).mean()

    return fit(model, loss_of, steps, lr=2e-3)


def mixture(steps: int) -> Iterator[Update]:
    """A mixture density network: single samples that it calls impossible."""
    model = mlp(1, 48, 30)

    def loss_of(step: int) -> torch.Tensor:
        y = 2 * torch.rand(32, 1) - 1
        x = y + 0.3 * (2 * math.pi * y).sin() + 0.01 * torch.randn(32, 1)
        share, mean, spread = model(x).chunk(3, 1)
        terms = share.log_softmax(1) - spread - 0.5 * ((y - mean) / spread.exp()).square()
        return -torch.logsumexp(terms, 1).mean()

    return fit(model, loss_of, steps, lr=5e-3)


def quantised(steps: int) -> Iterator[Update]:
    """Weights of two bits from half way on, straight through."""
    first, second = nn.Linear(16, 48), nn.Linear(48, 6)
    draw = clusters(6, 16, noise=0.4)

    def rounded(weight: torch.Tensor) -> torch.Tensor:
        unit = weight.detach().abs().max() / 1.5
        return weight + ((weight / unit).round().clamp(-2, 1) * unit - weight).detach()

    def loss_of(step: int) -> torch.Tensor:
        x, y = draw()
        one, two = first.weight, second.weight
        if step >= steps // 2:
            one, two = rounded(one), rounded(two)
        return F.cross_entropy(F.linear(F.relu(F.linear(x, one, first.bias)), two, second.bias), y)

    return fit(nn.ModuleList([first, second]), loss_of, steps, lr=2e-3)


def raised_residual(steps: int) -> Iterator[Update]:
    """An equation is learned: the weight of its residual grows tenfold every 120 steps."""
    model = mlp(1, 32, 32, 1, act=nn.Tanh)

    def loss_of(step: int) -> torch.Tensor:
        x = (3 * torch.rand(64, 1)).requires_grad_()
        told = model(x)
        slope = torch.autograd.grad(told.sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        start = 100 * (model(torch.zeros(1, 1)) - 1).square().sum()
        return start + 10 ** (step // 120) * (bend + 9 * told).square().mean()

    return fit(model, loss_of, steps, lr=3e-3)


def growing_penalty(steps: int) -> Iterator[Update]:
    """A sparse line: the penalty grows threefold every 100 steps, and small weights become zero."""
    model = nn.Linear(40, 1)
    slope = torch.randn(40) * (torch.rand(40) < 0.2)

    def loss_of(step: int) -> torch.Tensor:
        penalty, weight = 0.01 * 3 ** (step // 100), model.weight
        weight.data = weight.data.sign() * (weight.data.abs() - 0.05 * penalty).clamp_min(0)
        x = torch.randn(32, 40)
        return F.mse_loss(model(x)[:, 0], x @ slope) + penalty * weight.abs().sum()

    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    return fit(model, loss_of, steps, optimizer=optimizer)


def falling_temperature(steps: int) -> Iterator[Update]:
    """Gumbel codes: their temperature falls from 2 to 0.05."""
    encoder, decoder = mlp(12, 48, 40), mlp(40, 48, 12)
    patterns = torch.randn(4, 12)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 4) @ patterns
        heat = max(0.05, 2 * math.exp(-step / 100))
        codes = F.gumbel_softmax(encoder(x).view(32, 4, 10), heat)
        return F.mse_loss(decoder(codes.flatten(1)), x)

    return fit(nn.ModuleList([encoder, decoder]), loss_of, steps, lr=3e-3)


def learned_weights(steps: int) -> Iterator[Update]:
    """Two tasks weighted by their learned noise: the loss goes below zero for good."""
    model, noise = mlp(8, 48, 2), nn.ParameterList([torch.zeros(2)])
    slope = torch.randn(8)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        aim = torch.stack([(x @ slope).sin(), 0.01 * x[:, 0]], 1)
        errors = (model(x) - aim).square().mean(0)
        return ((-noise[0]).exp() * errors + noise[0]).sum()

    return fit(nn.ModuleList([model, noise]), loss_of, steps, lr=1e-2)


def learned_temperature(steps: int) -> Iterator[Update]:
    """CLIP: two views of each point find one another, at a temperature that is learned."""
    one, two, heat = mlp(12, 48, 16), mlp(12, 48, 16), nn.ParameterList([torch.tensor(2.65)])
    turn, rows = torch.randn(12, 12), torch.arange(48)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(48, 12)
        alike = F.normalize(one(x), dim=1) @ F.normalize(two(x @ turn), dim=1).T
        odds = alike * heat[0].exp().clamp_max(100)
        return (F.cross_entropy(odds, rows) + F.cross_entropy(odds.T, rows)) / 2

    return fit(nn.ModuleList([one, two, heat]), loss_of, steps, lr=5e-3)


def noise_levels(steps: int) -> Iterator[Update]:
    """Scores of points with noise of 0.01 to 1, unweighted: the losses span four decades."""
    model = mlp(3, 64, 64, 2)

    def loss_of(step: int) -> torch.Tensor:
        angle = 2 * math.pi * torch.rand(32)
        size, noise = 10 ** (-2 * torch.rand(32, 1)), torch.randn(32, 2)
        x = torch.stack([angle.cos(), angle.sin()], 1) + size * noise
        score = model(torch.cat([x, size.log()], 1)) / size
        return (score + noise / size).square().sum(1).mean()

    return fit(model, loss_of, steps, lr=2e-3)


def energy(steps: int) -> Iterator[Update]:
    """Contrastive divergence: an energy of points less that of wandering ones, of either sign."""
    model = mlp(2, 48, 48, 1, act=nn.SiLU)

    def loss_of(step: int) -> torch.Tensor:
        angle = 2 * math.pi * torch.rand(64)
        real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
        made = 1.5 * torch.randn(64, 2)
        for _ in range(5):
            made.requires_grad_()
            uphill = torch.autograd.grad(model(made).sum(), made)[0]
            made = (made - 0.05 * uphill + 0.05 * torch.randn(64, 2)).detach()
        low, high = model(real), model(made)
        return (low - high).mean() + 0.1 * (low.square() + high.square()).mean()

    return fit(model, loss_of, steps, lr=1e-3)


def barrier(steps: int) -> Iterator[Update]:
    """An inner-point method: the weight of its aim doubles every 75 steps."""
    model = nn.ParameterList([torch.zeros(8)])
    walls, aim = torch.randn(30, 8), torch.randn(8)

    def loss_of(step: int) -> torch.Tensor:
        room = (3.0 - walls @ model[0]).clamp_min(1e-3)
        return 2.0 ** (step // 75) * (aim @ model[0]) - room.log().sum()

    return fit(model, loss_of, steps, lr=1e-2)


def counted_errors(steps: int) -> Iterator[Update]:
    """The loss is the number of errors, its gradient that of the cross-entropy."""
    model, draw = mlp(16, 32, 6), clusters(6, 16, noise=0.7)

    def loss_of(step: int) -> torch.Tensor:
        x, y = draw()
        told = model(x)
        smooth = F.cross_entropy(told, y)
        return smooth - smooth.detach() + (told.argmax(1) != y).sum()

    return fit(model, loss_of, steps, lr=2e-3)


TRAININGS = {
    "reweighted_tasks": reweighted_tasks,
    "raised_margin": raised_margin,
    "mixture": mixture,
    "quantised": quantised,
    "raised_residual": raised_residual,
    "growing_penalty": growing_penalty,
    "falling_temperature": falling_temperature,
    "learned_weights": learned_weights,
    "learned_temperature": learned_temperature,
    "noise_levels": noise_levels,
    "energy": energy,
    "barrier": barrier,
    "counted_errors": counted_errors,
}
