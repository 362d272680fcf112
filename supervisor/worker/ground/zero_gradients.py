"""Gradients that a script may look at during a fast-forward: zeros."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.optim import Optimizer


class ZeroGradients:
    """Gives ``p.grad`` to parameters that have none; no optimizer gets to see it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def give(self, optimizers: Iterable[Optimizer]) -> None:
        """Called in place of a backward."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None and parameter.requires_grad:
                        parameter.grad = self._zeros_for(parameter)

    def _zeros_for(self, parameter: torch.Tensor) -> torch.Tensor:
        known = self._known.get(id(parameter))
        if known is None or known[0]() is not parameter:
            zeros = torch.zeros_like(parameter, requires_grad=False)
            known = self._known[id(parameter)] = (weakref.ref(parameter), zeros)
        return known[1]
