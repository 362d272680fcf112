"""A small healthy training, as a loop that somebody can look into before each of its updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from supervisor.records import StepRecord

LossOf: TypeAlias = Callable[[int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """An update that is about to be made.

    Attributes:
        optimizer: whose.
        loss: on which the script called backward.
        is_game: a second optimizer has learned from a backward of its own.
        clips_at: to which the script clips its gradient, which is done by then; 0 for not at all.
        norm: of the gradient before that; asked of the gradients where the script does not clip.
    """

    optimizer: torch.optim.Optimizer
    loss: torch.Tensor
    is_game: bool = False
    clips_at: float = 0.0
    norm: float = -1.0


Training: TypeAlias = Callable[[int], Iterator[Update]]
"""Number of updates → the updates; the seed is set before."""


def fit(
    model: nn.Module,
    loss_of: LossOf,
    steps: int,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    lr: float = 1e-3,
    rate: Callable[[int], float] | None = None,
    clip: float = 0.0,
) -> Iterator[Update]:
    """The usual loop: loss, backward, clip, update.

    Args:
        loss_of: step → loss.
        optimizer: Adam with `lr` if None.
        rate: step → factor of the rate.
        clip: norm to clip at.
    """
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr)
    base = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        if rate is not None:
            for group, usual in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = usual * rate(step)
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip)) if clip else -1.0
        yield Update(optimizer, loss.detach(), clips_at=clip, norm=norm)
        optimizer.step()


def clusters(
    kinds: int, width: int, *, apart: float = 1.0, noise: float = 0.5, batch: int = 32
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Draws batches of points around one centre a class, with the class of each."""
    centres = apart * torch.randn(kinds, width)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.randint(0, kinds, (batch,))
        return centres[y] + noise * torch.randn(batch, width), y

    return draw


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def records_of(training: Training, steps: int, seed: int) -> Iterator[StepRecord]:
    """Trains in this process, and makes the records that a live run makes."""
    torch.manual_seed(seed)
    for step, update in enumerate(training(steps)):
        grads = [p.grad for p in parameters(update.optimizer) if p.grad is not None]
        norm = update.norm
        if norm < 0.0:
            norm = float(torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])))
        yield StepRecord(
            step=step,
            loss=float(update.loss),
            grad_norm=norm,
            lr=update.optimizer.param_groups[0]["lr"],
            step_time_s=0.005,
            batch_size=16,
            memory_gib=0.5,
            clips_at=update.clips_at or math.inf,
            loss_seen=True,
            grad_norm_seen=True,
            others_trained=update.is_game and step > 0,
        )
