"""Puts the untrained weights back, with a much smaller learning rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.rollback import belongs_to_the_weights, zero_gradients
from supervisor.records import ActionResult
from supervisor.training_state.state import ROLLBACK_PARTS

RATE = 0.1
SMALLEST_SHARE = 1e-3

DERAILED = 1.5
"""The median parameter tensor lies further from its first value than 1.5 times that value's size
(`_size`). Starts with a rate 40 to 60 times too high come to 2.1 and more when the ladder asks
(benchmarks/unlucky_tasks.py: MLP, transformer, CNN, VAE and LSTM, four seeds each); healthy ones to
1.0, and from very small first weights to 1.3."""


class BackToStart(Action):
    """Restores the state before the very first update, and keeps a tenth of the rate for good.

    For a run that its first updates have thrown far off: there is no healthy course to go back to,
    and the script's own rate was never healthy, so the cut is not taken back; the schedule keeps
    its shape. A second time leaves a hundredth.
    """

    name = "back_to_start"
    moment = "boundary"
    abandons_state = True
    cost = "the steps since the start, and nine tenths of the rate for the rest of the run"

    def precondition(self, context: ActionContext) -> str | None:
        first = context.snapshots.oldest()
        if first is None or first.step > 0:
            return "the untrained state is no longer available"
        if context.controls.lr_share * RATE < SMALLEST_SHARE:
            return f"the learning rate is at {context.controls.lr_share:g} of its size already"
        live = context.state.capture(for_rollback=True)
        later = [snapshot.state for snapshot in context.snapshots.all() if snapshot.step > 0]
        if not all(_travel(state, first.state) > DERAILED for state in (live, *later)):
            return "the weights have not been thrown far from where they began"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        first = context.snapshots.oldest()
        if first is None:
            return ActionResult(name=self.name, applied=False, detail="there is no snapshot")
        context.state.restore(first.state, ROLLBACK_PARTS)
        with belongs_to_the_weights():
            for name, optimizer in context.registry.optimizers.items():
                if name not in first.state["optimizers"]:
                    optimizer.state.clear()
            zero_gradients(context)
            context.snapshots.drop_after(first.step)
            context.pipeline_restore({**first.extras, "held": first.state.get("held", {})})
        context.controls.lr_share *= RATE
        share = context.controls.lr_share
        return ActionResult(
            name=self.name,
            applied=True,
            detail=f"the untrained weights again, with {share:g} of the script's learning rate "
            "for the rest of the run: lower it in the script",
            to_step=first.step,
            fields={"from_step": context.step, "to_step": first.step, "lr_share": share},
        )


def _travel(state: Mapping[str, Any], first: Mapping[str, Any]) -> float:
    """How far the median parameter tensor is from its first value, relative to that value."""
    found = []
    with torch.no_grad():
        for model, tensors in state["models"].items():
            buffers, before = set(state["buffers"][model]), first["models"].get(model, {})
            for name, tensor in tensors.items():
                if name in buffers or name not in before or not tensor.is_floating_point():
                    continue
                origin = before[name].float()
                size = _size(origin)
                if size > 0:
                    way = float((tensor.detach().cpu().float() - origin).norm()) / size
                    found.append(way if math.isfinite(way) else math.inf)
    return statistics.median(found) if found else 0.0


def _size(origin: torch.Tensor) -> float:
    """The norm of a first value, or what torch would have filled such a tensor with, if more.

    Weights that begin near zero are meant to leave it: beside their first size every way is long.
    Those that begin at zero have no direction to be thrown in; 0 is returned for them.
    """
    rows = origin.shape[0] if origin.ndim > 1 else 1
    norm = float(origin.norm())
    return max(norm, math.sqrt(rows / 3)) if norm > 0 else 0.0
