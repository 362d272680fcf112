"""Each action alone heals a training that dies without it.

`checkpoint`, `restart` and `stop` are about whole processes: tests/scenarios has theirs.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from supervisor.actions.back_to_start import BackToStart
from supervisor.actions.base import Action
from supervisor.actions.batches import SkipData, SmallerBatch
from supervisor.actions.checkpoint_activations import CheckpointActivations
from supervisor.actions.clipping import AdaptiveClip, TightenClip
from supervisor.actions.fp32 import Fp32Fallback, Fp32Modules
from supervisor.actions.optimizer import CutLr, LimitLr, ResetOptimizer
from supervisor.actions.requests import SkipUpdate
from supervisor.actions.rollback import Rollback
from supervisor.records import Decision
from tests.actions.small_context import Scene, build_scene
from tests.actions.ward import SICK_AT, Ward, X


class PoisonedGradient(Ward):
    def on_gradients(self, step: int, gradients: list[torch.Tensor]) -> None:
        if step == SICK_AT:
            gradients[0][0, 0] = math.nan


class RateTooHigh(Ward):
    """From the onset on the learning rate is a bit more than the curvature allows."""

    treated_after = 3

    def build(self) -> Scene:
        return build_scene(
            nn.Linear(4, 4), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5)
        )

    def on_updated(self, step: int) -> None:
        if step == SICK_AT:
            self.scene.optimizer.param_groups[0]["lr"] = 5.5


class LeapingRate(Ward):
    """From the onset on the learning rate is twenty times what it was."""

    def build(self) -> Scene:
        return build_scene(
            nn.Linear(4, 4),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
            decision=Decision(step=0, actions=(), lr_limit=0.5),
        )

    def on_updated(self, step: int) -> None:
        if step == SICK_AT - 1:
            self.scene.optimizer.param_groups[0]["lr"] = 10.0


class NeverHealthy(Ward):
    """The learning rate is far too high from the first step on."""

    def build(self) -> Scene:
        return build_scene(
            nn.Linear(4, 4), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=5.5)
        )


class ExplodingGradients(Ward):
    """From the onset on every fifth gradient is ten thousand times too large."""

    def build(self) -> Scene:
        return build_scene(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))

    def on_gradients(self, step: int, gradients: list[torch.Tensor]) -> None:
        if step >= SICK_AT and step % 5 == 0:
            for gradient in gradients:
                gradient.mul_(1e4)


class RareSpike(ExplodingGradients):
    """One gradient, a million times too large, after hundreds of usual ones."""

    def build(self) -> Scene:
        scene = super().build()
        scene.context.recent_grad_norms = [0.2] * 300
        return scene

    def on_gradients(self, step: int, gradients: list[torch.Tensor]) -> None:
        if step == SICK_AT:
            for gradient in gradients:
                gradient.mul_(1e6)


class NoRoom(Ward):
    """From the onset on the device has room for 16 rows at a time; the global batch is 32."""

    def build(self) -> Scene:
        return build_scene(uses_batch_size=True)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        size = int(len(x) * self.controls.batch_factor) if len(x) == 32 else len(x)
        parts = list(zip(x.split(size), y.split(size), strict=True))
        if self.context.step >= SICK_AT and len(x) == 32 and size > 16:
            raise torch.OutOfMemoryError("no room")
        return sum(super(NoRoom, self).loss(a, b) * len(a) for a, b in parts) / len(x)


class KeepsAll(nn.Module):
    """Computes activations again where it is told to, as the models of public libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.grad_checkpointing = False

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = self.grad_checkpointing
        return checkpoint(self.layers, x, use_reentrant=False) if again else self.layers(x)


class NoRoomForActivations(Ward):
    """From the onset on the device has no room for all activations."""

    def build(self) -> Scene:
        return build_scene(KeepsAll())

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.context.step >= SICK_AT and not self.scene.model.grad_checkpointing:
            raise torch.OutOfMemoryError("no room")
        return super().loss(x, y)


class BadStretch(Ward):
    """A stretch of the data is garbage; the training is at its third batch when it is treated."""

    treated_after = 3

    def on_batch(self, number: int, x: torch.Tensor) -> torch.Tensor:
        return x * math.nan if SICK_AT + 3 <= number < SICK_AT + 7 else x


class CorruptMomentum(Ward):
    """The momentum is as if the last gradients had been absurd; any value of it is possible."""

    treated_after = 1

    def build(self) -> Scene:
        return build_scene(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        )

    def on_updated(self, step: int) -> None:
        if step == SICK_AT:
            for state in self.scene.optimizer.state.values():
                state["momentum_buffer"].mul_(1e6)


class CorruptWeight(Ward):
    """A weight in memory becomes NaN."""

    treated_after = 1

    def on_updated(self, step: int) -> None:
        if step == SICK_AT:
            next(self.scene.model.parameters()).data[0, 0] = math.nan


class HalfAdam(Ward):
    """FP16 throughout: Adam's epsilon and small second moments are zero there."""

    def build(self) -> Scene:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        return build_scene(model.half())

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dtype = next(self.scene.model.parameters()).dtype
        return super().loss(x.to(dtype), y)

    @property
    def treated_after(self) -> int:  # type: ignore[override]
        return -SICK_AT


class WideNorm(nn.Module):
    """The sum of squares of its inputs leaves FP16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm = HalfNorm(8)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x) * self.scale))


class HalfNorm(nn.LayerNorm):
    """A normalisation written by hand, as in many models, in whatever precision it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = x.square().sum(-1, keepdim=True) / x.shape[-1]
        return x / (square + 1e-6).sqrt() * self.weight + self.bias


class OverflowInNorm(Ward):
    """From the onset on activations are so large that their squares overflow FP16."""

    treated_after = 0

    def build(self) -> Scene:
        return build_scene(WideNorm(), uses_autocast=True)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.scene.model.scale = 1000.0 if self.context.step >= SICK_AT else 1.0
        with torch.autocast("cpu", torch.float16):
            output = self.scene.model(x)
        return (output.float() - y).square().mean()


CASES = {
    "skip_update": (PoisonedGradient, SkipUpdate),
    "cut_lr": (RateTooHigh, CutLr),
    "limit_lr": (LeapingRate, LimitLr),
    "back_to_start": (NeverHealthy, BackToStart),
    "tighten_clip": (ExplodingGradients, TightenClip),
    "adaptive_clip": (RareSpike, AdaptiveClip),
    "checkpoint_activations": (NoRoomForActivations, CheckpointActivations),
    "smaller_batch": (NoRoom, SmallerBatch),
    "skip_data": (BadStretch, SkipData),
    "reset_optimizer": (CorruptMomentum, ResetOptimizer),
    "rollback": (CorruptWeight, Rollback),
    "fp32_fallback": (HalfAdam, Fp32Fallback),
    "fp32_modules": (OverflowInNorm, Fp32Modules),
}
UNTRAINED = float((X[:, 0].sin() ** 2).mean())
"""About what a model that foretells nothing has as its loss."""


@pytest.mark.parametrize("name", CASES)
def test_a_training_that_dies_without_the_action_is_healed_by_it_alone(name: str) -> None:
    sickness, action = CASES[name]
    treatment: Action = action()

    without = sickness().train()
    healed = sickness().train(treatment)

    assert treatment.name == name
    assert without > UNTRAINED
    assert healed < 0.5 * UNTRAINED
