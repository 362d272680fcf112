"""Gradients of a script's own leaves in a fast-forward: inputs that are attacked, latent codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from supervisor.training_state.tensors import tensors_within

_NODES = 10_000
"""Of a graph that is gone through; larger ones are none of a stand-in."""


class LeafGradients:
    """Gives zeros to leaves that a backward would have given a gradient, and to values between for
    which the script asked (`retain_grad`); their optimizers' parameters get theirs elsewhere.

    Args:
        is_ours: whether a leaf is a stand-in's, which the script cannot reach.
    """

    def __init__(self, is_ours: Callable[[torch.Tensor], bool]) -> None:
        self._is_ours = is_ours
        self._since_update: list[torch.Tensor] = []

    def saw(self, value: Any) -> None:
        """Called with what a forward that is left out was given, and with what it put out."""
        self._since_update += [one for one in tensors_within(value) if one.requires_grad]

    def give(self, roots: Any) -> None:
        """Called in place of a backward."""
        values = [*self._since_update, *tensors_within(roots)]
        for value in values:
            if value.retains_grad and value.grad is None:
                value.grad = _zeros(value)
        for leaf in _leaves(values):
            if leaf.grad is None and not self._is_ours(leaf):
                leaf.grad = _zeros(leaf)

    def step_ended(self) -> None:
        self._since_update.clear()


def _leaves(values: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from (value for value in values if value.is_leaf and value.requires_grad)
    waiting = [value.grad_fn for value in values if value.grad_fn is not None]
    seen = set(waiting)
    while waiting and len(seen) < _NODES:
        node: Any = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)


def _zeros(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value, requires_grad=False)
