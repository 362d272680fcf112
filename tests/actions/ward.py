"""A small real training that falls sick at one step, with at most one treatment."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from supervisor.actions.base import Action, carry_out
from supervisor.records import ActionResult
from supervisor.worker.core.gradient_norms import gradient_norm
from supervisor.worker.core.progress import ScriptUse
from supervisor.worker.treatment.update_controls import UpdateControls
from tests.actions.small_context import Scene, build_scene

STEPS = 150
SICK_AT = 60

X = torch.randn(256, 4, generator=torch.Generator().manual_seed(5))
Y = torch.stack([X[:, 0].sin(), X[:, 1] * 0.5, X[:, 2].cos(), X[:, 3]], 1)


class Ward:
    """One training; sicknesses override a moment.

    Attributes:
        treated_after: steps from the onset to the treatment, by which the ladder would have acted.
    """

    treated_after = 0

    def __init__(self) -> None:
        self.scene = self.build()
        self.context = self.scene.context
        self.context.skip_batches = self._skip
        self.controls = self.context.controls
        self._updates = UpdateControls(self.controls, ScriptUse(), lambda step, why: None)
        self._order = torch.Generator().manual_seed(6)
        self._left_out = 0
        self._batches = 0

    def build(self) -> Scene:
        return build_scene()

    # --- where sickness comes in ---------------------------------------------------------------

    def on_batch(self, number: int, x: torch.Tensor) -> torch.Tensor:
        return x

    def on_gradients(self, step: int, gradients: list[torch.Tensor]) -> None:
        return None

    def on_updated(self, step: int) -> None:
        return None

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.scene.model(x) - y).float().square().mean()

    # --- the loop ------------------------------------------------------------------------------

    def train(self, treatment: Action | None = None) -> float:
        """Returns the final loss on all data; infinity if the training raised or is not finite."""
        try:
            for step in range(STEPS):
                self._step(step, treatment)
            final = float(self.loss(X, Y).detach())
        except RuntimeError:
            return math.inf
        return final if math.isfinite(final) else math.inf

    def _step(self, step: int, treatment: Action | None) -> None:
        optimizer, context = self.scene.optimizer, self.context
        treats = treatment is not None and step == SICK_AT + self.treated_after
        if treats and treatment.moment == "boundary":
            self._treat(treatment)
        if step % 10 == 0 and (step < SICK_AT or treatment is not None):
            self.scene.snapshot()
        optimizer.zero_grad()
        x, y = self._draw()
        self.loss(x, y).backward()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.on_gradients(step, [p.grad for p in parameters])
        norm, skip = gradient_norm(parameters), ""
        if treats and treatment.moment == "update":
            skip = "treated" if self._treat(treatment).skips_update else ""
        self._updates.apply(optimizer, step, self._updates.plan(optimizer, step, skip))
        optimizer.step()
        self._updates.update_ended()
        self.controls.advance(math.nan if norm is None else norm)
        if norm is not None:
            context.recent_grad_norms = [*context.recent_grad_norms, norm]
        self.on_updated(step)
        context.step += 1

    def _treat(self, treatment: Action) -> ActionResult:
        context = self.context
        context.decision = replace(context.decision, step=context.step, onset_step=SICK_AT)
        result = carry_out(treatment, context)
        assert result.applied, result.detail
        return result

    def _draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        while True:
            rows = torch.randint(len(X), (32,), generator=self._order)
            number, self._batches = self._batches, self._batches + 1
            if self._left_out:
                self._left_out -= 1
                continue
            return self.on_batch(number, X[rows]), Y[rows]

    def _skip(self, count: int) -> None:
        self._left_out += count
