"""Small real trainings in this process, as the records that a live run makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from supervisor.records import StepRecord
from supervisor.worker.core.step_probe import observed_numbers

Loss = Callable[[int], tuple[torch.Tensor, dict[str, Any]]]


def records_of(
    model: nn.Module,
    loss_of: Loss,
    steps: int,
    *,
    lr: float = 1e-2,
    clip: float = 1e9,
    rate: Callable[[int], float] = lambda step: 1.0,
) -> Iterator[StepRecord]:
    """Trains with Adam; `loss_of` gives a step's loss and what to observe."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * rate(step)
        loss, observed = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        yield StepRecord(
            step=step,
            loss=float(loss.detach()),
            grad_norm=float(norm),
            lr=lr * rate(step),
            batch_size=64,
            loss_seen=True,
            grad_norm_seen=True,
            observed=observed_numbers(observed),
        )
        optimizer.step()


def reward_model(steps: int, *, drifts_from: int, seed: int = 0) -> Iterator[StepRecord]:
    """A Bradley-Terry model of a hidden taste, which turns to its opposite within 100 steps."""
    torch.manual_seed(seed)
    taste = torch.randn(16)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, Any]]:
        texts = torch.randn(2, 64, 16)
        turned = min(1.0, max(0.0, (step - drifts_from) / 100))
        liking = texts @ taste + torch.randn(2, 64)  # annotators are noisy
        swap = (liking[0] < liking[1]) ^ (torch.rand(64) < turned)
        chosen = torch.where(swap[:, None], texts[1], texts[0])
        rejected = torch.where(swap[:, None], texts[0], texts[1])
        scores = model(torch.cat([chosen, rejected]))[:, 0].split(64)
        loss = functional.softplus(scores[1] - scores[0]).mean()
        return loss, {"chosen_rewards": scores[0].detach(), "rejected_rewards": scores[1].detach()}

    return records_of(model, loss_of, steps, lr=3e-3)


def policy(steps: int, *, hack_from: int, seed: int = 0) -> Iterator[StepRecord]:
    """REINFORCE near a reference policy, whose KL weight falls to nothing at a step."""
    torch.manual_seed(seed)
    actions, length = 12, 8
    model = nn.Linear(4, actions)
    reference = nn.Linear(4, actions)
    with torch.no_grad():
        model.weight.copy_(reference.weight)
        model.bias.copy_(reference.bias)
    prize = torch.linspace(-1, 1, actions)

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, Any]]:
        x = torch.randn(64, 4)
        odds, given = model(x).log_softmax(1), reference(x).log_softmax(1).detach()
        action = torch.multinomial(odds.exp().detach(), length, replacement=True)
        reward = prize[action].mean(1)
        kl = (odds.exp() * (odds - given)).sum(1)
        gain = reward - reward.mean()
        weight = 2.0 if step < hack_from else 0.0
        loss = -(gain * odds.gather(1, action).sum(1)).mean() + weight * kl.mean()
        entropy = -(odds.exp() * odds).sum(1).mean()
        return loss, {
            "rewards": reward,
            "advantages": gain,
            "kl_to_reference": (length * kl).mean().detach(),
            "entropy": entropy.detach(),
        }

    return records_of(model, loss_of, steps, lr=2e-2)


def language_model(
    steps: int,
    *,
    rate: Callable[[int], float] = lambda step: 1.0,
    garbled_from: int = 10**6,
    seed: int = 0,
) -> Iterator[StepRecord]:
    """A recurrent model of a Markov chain; single batches have rows of another text (heavy tail).

    From `garbled_from` on, over 150 steps, more and more rows are random.
    """
    torch.manual_seed(seed)
    chain = torch.softmax(3 * torch.randn(20, 20), -1)
    rows = [torch.randint(20, (2000,))]
    for _ in range(12):
        rows.append(torch.multinomial(chain[rows[-1]], 1)[:, 0])
    text = torch.stack(rows, 1)
    model = nn.ModuleDict(
        {"e": nn.Embedding(20, 24), "r": nn.GRU(24, 32, batch_first=True), "h": nn.Linear(32, 20)}
    )

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, Any]]:
        codes = text[torch.randint(2000, (16,))]
        share = 0.15 * torch.rand(()) if torch.rand(()) < 0.02 else torch.zeros(())
        share = torch.clamp(torch.tensor((step - garbled_from) / 150), float(share), 1.0)
        random = torch.rand(16, 1) < share
        codes = torch.where(random, torch.randint(20, codes.shape), codes)
        hidden, _ = model["r"](model["e"](codes[:, :-1]))
        logits = model["h"](hidden).flatten(0, 1)
        return functional.cross_entropy(logits, codes[:, 1:].flatten()), {}

    return records_of(model, loss_of, steps, lr=5e-3, clip=1.0, rate=rate)


def image_model(
    steps: int,
    *,
    rate: Callable[[int], float] = lambda step: 1.0,
    raw_from: int = 10**6,
    seed: int = 0,
) -> Iterator[StepRecord]:
    """A convolution that tells noisy patterns apart; half of the batches are mixed images.

    From `raw_from` on images come as bytes, 0 to 255, instead of normalised ones.
    """
    torch.manual_seed(seed)
    kinds = torch.randn(5, 1, 8, 8)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5))

    def loss_of(step: int) -> tuple[torch.Tensor, dict[str, Any]]:
        labels = torch.randint(5, (32,))
        pixels = kinds[labels] + torch.randn(32, 1, 8, 8)
        if step >= raw_from:
            pixels = (64 * pixels + 128).clamp(0, 255)
        if torch.rand(()) < 0.5:
            other, share = labels.roll(1), 0.4 + 0.2 * torch.rand(())
            logits = model(share * pixels + (1 - share) * pixels.roll(1, 0))
            return share * functional.cross_entropy(logits, labels) + (
                1 - share
            ) * functional.cross_entropy(logits, other), {}
        return functional.cross_entropy(model(pixels), labels), {}

    return records_of(model, loss_of, steps, lr=3e-3, rate=rate)
