"""Small real trainings whose every object is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from supervisor.training_state.registry import Registry
from supervisor.training_state.state import TrainingState

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]


class SmallModel(nn.Module):
    """Tied weights, batch statistics, dropout, a non-persistent mask with infinities, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.middle.weight
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]), persistent=False)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = torch.dropout(self.norm(self.first(x)), 0.1, self.training)
        return self.last(torch.tanh(self.middle(torch.tanh(hidden))))


@dataclass
class Run:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    registry: Registry
    state: TrainingState

    def train(self, steps: int) -> None:
        for _ in range(steps):
            batch = torch.randn(8, 4)

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = (self.model(batch) - batch.repeat(1, 2)).square().mean()
                loss.backward()
                return loss

            self.optimizer.step(closure)
            if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(torch.rand(()).item())
            elif self.scheduler is not None:
                self.scheduler.step()


def build_run(
    optimizer: OptimizerFactory,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    model: nn.Module | None = None,
) -> Run:
    torch.manual_seed(1)
    built = model or SmallModel()
    chosen = optimizer(built.parameters())
    registry = Registry()
    registry.add_model(built)
    registry.add_optimizer(chosen)
    schedule = scheduler(chosen) if scheduler else None
    if schedule is not None:
        registry.add_scheduler(schedule)
    return Run(built, chosen, schedule, registry, TrainingState(registry))
