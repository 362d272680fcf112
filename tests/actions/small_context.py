"""A context around a small real training, every service recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from supervisor.actions.base import ActionContext
from supervisor.actions.controls import Controls
from supervisor.records import Cause, Decision
from supervisor.settings import PolicySettings, SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState


@dataclass
class Scene:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    context: ActionContext
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def train(self, steps: int = 1, dtype: torch.dtype = torch.float32) -> None:
        for _ in range(steps):
            batch = torch.randn(8, 4).to(dtype)
            self.optimizer.zero_grad()
            (self.model(batch) - batch).float().square().mean().backward()
            self.optimizer.step()
            self.context.step += 1

    def snapshot(self) -> None:
        step = self.context.step
        self.context.snapshots.take(step, self.context.state.capture(), {"step": step})


def build_scene(
    model: nn.Module | None = None,
    *,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    **changes: Any,
) -> Scene:
    torch.manual_seed(0)
    built = model or nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    make = optimizer or (lambda parameters: torch.optim.Adam(parameters, 1e-2))
    used = make(built.parameters())
    registry = Registry()
    registry.add_model(built)
    registry.add_optimizer(used)
    calls: list[tuple[str, Any]] = []

    def save(reason: str) -> bool:
        calls.append(("checkpoint", reason))
        return True

    settings: dict[str, Any] = {
        "step": 0,
        "policy": PolicySettings(),
        "decision": Decision(step=0, actions=(), cause=Cause.SPIKE, reason="loss spike"),
        "controls": Controls(),
        "registry": registry,
        "state": TrainingState(registry),
        "snapshots": SnapshotRing(SnapshotSettings(depths=[10, 50, 300])),
        "save_checkpoint": save,
        "request_restart": lambda reason: calls.append(("restart", reason)),
        "request_stop": lambda reason: calls.append(("stop", reason)),
        "pipeline_restore": lambda extras: calls.append(("pipeline", extras)),
        "skip_batches": lambda count: calls.append(("skip", count)),
    }
    return Scene(built, used, ActionContext(**(settings | changes)), calls)
