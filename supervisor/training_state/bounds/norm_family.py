"""SGD, whose updates are as large as the gradients, and Lion, whose updates are signs."""

from __future__ import annotations

import math

from supervisor.training_state.bounds.averages import FIRST, LOST
from supervisor.training_state.bounds.limits import Affine, Limits
from supervisor.training_state.bounds.optimizer_family import (
    SLACK,
    OptimizerFamily,
    decoupled,
    drift,
)
from supervisor.training_state.bounds.seen_update import (
    MOMENTUM,
    Explained,
    SeenUpdate,
    explained_by_lion,
)
from supervisor.training_state.bounds.update_log import Update, UpdateLog


class SGD(OptimizerFamily):
    """With momentum, dampening, Nesterov and L2 decay; no element exceeds the gradient's norm."""

    keys = ("lr", "momentum", "dampening", "nesterov", "weight_decay")
    needs_norms = True
    counts = ""

    def limits(self, log: UpdateLog) -> Limits | None:
        unit, lost = log.rounding.unit, Affine(4 * log.rounding.tiny)
        memory = Affine(of_memory=1.0) if log.has_memory else Affine()
        moved = Affine()
        for index, update in enumerate(log.updates):
            rate, decay = update.number("lr"), update.number("weight_decay")
            if not math.isfinite(update.norm) or rate < 0.0 or decay < 0.0:
                return None
            gradient = Affine(update.norm + NORM_LOST, decay).plus(moved, decay)
            gradient = gradient.times(1 + 4 * unit).plus(lost)
            memory = self._memory(update, memory, gradient, is_first=not (index or log.has_memory))
            memory = memory.times(1 + 4 * unit).plus(lost)
            step = memory
            if not update.number("momentum"):
                step = gradient
            elif update.is_on("nesterov"):
                step = gradient.plus(memory, abs(update.number("momentum")))
            moved = drift([(moved, 0.0), (step.times(rate), 0.0)], log.rounding)
        keeps = all(update.number("momentum") for update in log.updates)
        return Limits(
            weight=moved.times(1 + SLACK),
            memory="momentum_buffer",
            memory_limit=memory.times(1 + SLACK) if keeps else None,
        )

    @staticmethod
    def _memory(update: Update, memory: Affine, gradient: Affine, *, is_first: bool) -> Affine:
        taken = 1.0 if is_first else abs(1 - update.number("dampening"))
        return memory.times(abs(update.number("momentum"))).plus(gradient, taken)


NORM_LOST = 1e-15
"""Squares of smaller gradients underflow in the norm."""


class Lion(OptimizerFamily):
    """Each element moves by the learning rate, and by the decay; the momentum is an average of
    gradients."""

    keys = ("lr", "betas", "weight_decay")
    needs_norms = True
    counts = ""

    def limits(self, log: UpdateLog) -> Limits | None:
        steps: list[tuple[Affine, float]] = []
        unit, lost = log.rounding.unit, Affine(LOST * log.rounding.tiny)
        memory = Affine(of_memory=1.0) if log.has_memory else Affine()
        for update in log.updates:
            decay = decoupled(update, is_on=True)
            if decay is None:
                return None
            steps.append((Affine(update.number("lr")), decay))
            _, beta = update.betas
            newest = Affine(update.norm + NORM_LOST) if 0.0 <= beta <= 1.0 else Affine(math.inf)
            memory = memory.times(beta).plus(newest, 1 - beta).times(1 + FIRST * unit).plus(lost)
        return Limits(
            weight=drift(steps, log.rounding),
            memory=MOMENTUM,
            memory_limit=memory.times(1 + SLACK) if math.isfinite(memory.constant) else None,
        )

    def explains(self, seen: SeenUpdate) -> Explained:
        return explained_by_lion(seen)
