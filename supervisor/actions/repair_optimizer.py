"""Replaces what cannot be true in the state of an optimizer, and leaves the rest."""

from __future__ import annotations

import math
from typing import Any

import torch

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult
from supervisor.training_state.tensors import local, outside_autograd

_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
_SLACK = 1.1
_TINY = 1e-18


class RepairOptimizer(Action):
    """Zeroes impossible momenta, and gives impossible second moments their tensor's maximum.

    Impossible are NaN, infinities, negative second moments, and for Adam first moments beyond
    what Cauchy-Schwarz allows (`adam_bound`): a flipped bit, a bad restore, an overflow. A large
    second moment makes the step small, the careful side.
    """

    name = "repair_optimizer"
    moment = "boundary"
    abandons_state = True
    cost = "two passes over the optimizer's state"

    def precondition(self, context: ActionContext) -> str | None:
        if not _repaired(context, look_only=True):
            return "nothing in the optimizers' state is impossible"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        repaired = _repaired(context)
        worst = max(repaired, key=lambda where: repaired[where])
        total = sum(repaired.values())
        return self.done(f"{total} values replaced, most in {worst}", repaired=repaired)


def adam_bound(beta1: float, beta2: float) -> float:
    """Returns C with ``|exp_avg| <= C sqrt(exp_avg_sq)`` for any sequence of gradients.

    Both are sums over the same gradients, weighted by (1-b1) b1^i and (1-b2) b2^i; Cauchy-Schwarz
    gives C = (1-b1) / sqrt((1-b2)(1-b1^2/b2)), 7.3 for the defaults; infinite if b1^2 >= b2.
    """
    if not 0 < beta2 < 1 or beta1 * beta1 >= beta2:
        return math.inf
    return (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2))


def _repaired(context: ActionContext, *, look_only: bool = False) -> dict[str, int]:
    """Returns which entry needs or has had how many values replaced."""
    repaired: dict[str, int] = {}
    with outside_autograd():
        for name, optimizer in context.registry.optimizers.items():
            for group in optimizer.param_groups:
                for index, parameter in enumerate(group["params"]):
                    entries = optimizer.state.get(parameter)
                    if entries:
                        _repair(f"{name}.{index}", entries, group, repaired, look_only)
    return repaired


def _repair(
    where: str,
    entries: dict[str, Any],
    group: dict[str, Any],
    repaired: dict[str, int],
    look_only: bool,
) -> None:
    for key, value in entries.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or key == "step":
            continue
        tensor = local(value)
        bad = ~torch.isfinite(tensor)
        if key in _SECOND_MOMENTS:
            bad |= tensor < 0
        elif key == "exp_avg" and "exp_avg_sq" in entries and tensor.dtype in _EXACT:
            bound = adam_bound(*(float(beta) for beta in group.get("betas", (1.0, 0.0))))
            squares = local(entries["exp_avg_sq"]).nan_to_num(posinf=0.0).clamp(min=0)
            if math.isfinite(bound):
                bad |= tensor.abs() > _SLACK * bound * squares.sqrt() + _TINY
        count = int(bad.sum())
        if not count:
            continue
        repaired[f"{where}.{key}"] = count
        if not look_only:
            good = tensor[~bad]
            largest = good.max() if key in _SECOND_MOMENTS and good.numel() else 0.0
            tensor.copy_(torch.where(bad, largest, tensor))


_EXACT = (torch.float32, torch.float64)
