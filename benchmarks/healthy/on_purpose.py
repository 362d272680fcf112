"""Losses that rise, alternate or bend because the script wants them to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import LossOf, Update, fit
from benchmarks.healthy.margins import mlp


def tasks_in_turn(steps: int) -> Iterator[Update]:
    """Two tasks whose losses differ by three orders of magnitude, step by step."""
    body, big, small = mlp(8, 32, 32), nn.Linear(32, 1), nn.Linear(32, 3)
    model = nn.ModuleList([body, big, small])

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        hidden = F.relu(body(x))
        if step % 2:
            return F.mse_loss(big(hidden)[:, 0], 40 * x[:, 0] + 10 * torch.randn(32))
        return F.cross_entropy(small(hidden), (x[:, 1] > 0).long() + (x[:, 2] > 1).long())

    return fit(model, loss_of, steps, lr=3e-3)


def rare_task(steps: int) -> Iterator[Update]:
    """A second task at every eighth step, with a loss of 300 times the first one's."""
    body, often, rare = mlp(8, 32, 32), nn.Linear(32, 1), nn.Linear(32, 1)
    model = nn.ModuleList([body, often, rare])

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        hidden = F.relu(body(x))
        if step % 8 == 7:
            return F.mse_loss(rare(hidden)[:, 0], 6 * x[:, 1] + 6 * torch.randn(32))
        return F.mse_loss(often(hidden)[:, 0], x[:, 0].sin() + 0.3 * torch.randn(32))

    return fit(model, loss_of, steps, lr=3e-3)


def curriculum(steps: int) -> Iterator[Update]:
    """Sums of ever longer rows of digits; each stage begins well above the last one's end."""
    model = nn.GRU(1, 24, batch_first=True)
    head = nn.Linear(24, 1)
    both = nn.ModuleList([model, head])

    def loss_of(step: int) -> torch.Tensor:
        length = 2 + 2 * (4 * step // max(1, steps))
        x = torch.rand(32, length, 1)
        _, state = model(x)
        return F.mse_loss(head(state[0])[:, 0], x.sum((1, 2)))

    return fit(both, loss_of, steps, lr=3e-3)


def _classifier(
    steps: int,
    rate: Callable[[int], float] | None = None,
    loss: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    *,
    lr: float = 1e-2,
    momentum: float = 0.9,
) -> Iterator[Update]:
    centres = torch.randn(5, 10)
    model = mlp(10, 48, 5)

    def loss_of(step: int) -> torch.Tensor:
        y = torch.randint(0, 5, (32,))
        logits = model(centres[y] + torch.randn(32, 10))
        return loss(step, logits, y) if loss else F.cross_entropy(logits, y)

    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=momentum)
    return fit(model, loss_of, steps, optimizer=optimizer, rate=rate)


def cyclic(steps: int) -> Iterator[Update]:
    """A triangular rate between 1 and 12 times its least."""
    return _classifier(steps, lambda step: 1 + 11 * (1 - abs(step % 200 / 100 - 1)), lr=5e-3)


def warm_restarts(steps: int) -> Iterator[Update]:
    return _classifier(
        steps, lambda step: 0.5 + 0.5 * math.cos(math.pi * (step % 150) / 150), lr=5e-2
    )


def one_cycle(steps: int) -> Iterator[Update]:
    top = 0.3 * steps

    def rate(step: int) -> float:
        if step < top:
            return 0.04 + 0.96 * step / top
        return 0.5 + 0.5 * math.cos(math.pi * (step - top) / (steps - top))

    return _classifier(steps, rate, lr=0.1)


def focal(steps: int) -> Iterator[Update]:
    """Focal loss: examples that are easy by now count for next to nothing."""

    def loss(step: int, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        odds = F.log_softmax(logits, 1).gather(1, y[:, None])[:, 0]
        return ((1 - odds.exp()) ** 4 * -odds).mean()

    return _classifier(steps, loss=loss)


def smoothing(steps: int) -> Iterator[Update]:
    """Label smoothing is switched on half way: the loss leaps, and nothing is wrong."""

    def loss(step: int, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, y, label_smoothing=0.0 if step < steps // 2 else 0.2)

    return _classifier(steps, loss=loss)


def _preferences(step_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> LossOf:
    taste = torch.randn(16)

    def loss_of(step: int) -> torch.Tensor:
        texts = torch.randn(2, 4, 16)
        liking = texts @ taste + 4 * torch.randn(2, 4)  # annotators agree little
        better = (liking[0] > liking[1])[:, None]
        chosen, rejected = torch.where(better, *texts), torch.where(better, *texts.flip(0))
        return step_loss(chosen, rejected)

    return loss_of


def reward_model(steps: int) -> Iterator[Update]:
    """A reward model of preferences, four pairs a batch, around 0.65."""
    model = mlp(16, 32, 1)

    def loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return F.softplus(model(rejected) - model(chosen)).mean()

    return fit(model, _preferences(loss), steps, lr=1e-3)


def preferences(steps: int) -> Iterator[Update]:
    """DPO of four pairs a batch: log-ratios to a frozen reference, warmed up, clipped at 1."""
    model, reference = nn.Linear(16, 16), nn.Linear(16, 16)
    reference.load_state_dict(model.state_dict())

    def score(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(net(x), 1).gather(1, x.argmax(1, keepdim=True))[:, 0]

    def loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        gain = score(model, chosen) - score(model, rejected)
        gain = gain - (score(reference, chosen) - score(reference, rejected)).detach()
        return -F.logsigmoid(0.5 * gain).mean()

    return fit(
        model, _preferences(loss), steps, lr=2e-2, rate=lambda s: min(1.0, (s + 1) / 20), clip=1.0
    )


def clipped_spikes(steps: int) -> Iterator[Update]:
    """Single batches whose gradient is 20 times the usual, which the script clips at 1."""
    model = mlp(6, 32, 1)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 6)
        y = x[:, 0] + 0.3 * torch.randn(32)
        weight = 8.0 if step % 70 == 69 else 1.0
        return F.smooth_l1_loss(model(x)[:, 0] * weight, y * weight)

    return fit(model, loss_of, steps, lr=3e-3, clip=0.5)


def cyclic_kl(steps: int) -> Iterator[Update]:
    """A VAE whose KL weight begins at zero again and again, as against posterior collapse."""
    encoder, decoder = mlp(12, 48, 8), mlp(4, 48, 12)
    patterns = torch.randn(4, 12)

    def loss_of(step: int) -> torch.Tensor:
        weight = 4 * min(1.0, step % 150 / 75)
        x = torch.randn(32, 4) @ patterns
        mu, logvar = encoder(x).chunk(2, 1)
        drawn = decoder(mu + (logvar / 2).exp() * torch.randn_like(mu))
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return (drawn - x).square().sum(1).mean() + weight * kl

    return fit(nn.ModuleList([encoder, decoder]), loss_of, steps, lr=4e-3)


TRAININGS = {
    "cyclic_kl": cyclic_kl,
    "tasks_in_turn": tasks_in_turn,
    "rare_task": rare_task,
    "curriculum": curriculum,
    "cyclic": cyclic,
    "warm_restarts": warm_restarts,
    "one_cycle": one_cycle,
    "focal": focal,
    "smoothing": smoothing,
    "reward_model": reward_model,
    "preferences": preferences,
    "clipped_spikes": clipped_spikes,
}
