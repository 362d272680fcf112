"""Gradients of a script's own leaves in a fast-forward: inputs that are attacked, latent codes, and
parameters that no optimizer has (it has a flat copy, or a slice of one)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import Module
from torch.utils.weak import WeakIdKeyDictionary

from supervisor.by_identity import ByIdentity
from supervisor.training_state.tensors import tensors_within

_NODES = 10_000
"""Of a graph that is gone through; larger ones are none of a stand-in."""


class LeafGradients:
    """Gives zeros to leaves that a backward would have given a gradient, and to values between for
    which the script asked (`retain_grad`); their optimizers' parameters get theirs elsewhere.

    Args:
        retained: those values between, as keys.
        is_ours: whether a leaf is a stand-in's, which the script cannot reach.
    """

    def __init__(
        self, retained: Mapping[torch.Tensor, None], is_ours: Callable[[torch.Tensor], bool]
    ) -> None:
        self._retained = retained
        self._is_ours = is_ours
        self._since_update: list[torch.Tensor] = []
        self._given: Any = WeakIdKeyDictionary()
        self._executed: list[Module] = []
        self._left_out: list[Module] = []
        self._reached: ByIdentity[Module, list[weakref.ref[torch.Tensor]]] = ByIdentity()

    def executed_forward(self, module: Module) -> None:
        """Called behind a forward that was executed."""
        if torch.is_grad_enabled():
            self._executed.append(module)

    def executed_backward(self) -> None:
        """Called behind a backward that may have been executed."""
        for module in self._executed:
            found: list[weakref.ref[torch.Tensor]] = [
                weakref.ref(p) for p in module.parameters() if p.grad is not None
            ]
            if found:
                self._reached[module] = found

    def saw(self, module: Module, value: Any) -> None:
        """Called with a module whose forward is left out, and what that was given and puts out."""
        if module in self._reached and torch.is_grad_enabled():
            self._left_out.append(module)
        with torch._C.DisableTorchFunctionSubclass():
            self._since_update += [one for one in tensors_within(value) if one.requires_grad]

    def give(self, roots: Any) -> None:
        """Called in place of a backward."""
        values = [*self._since_update, *tensors_within(roots)]
        for value in self._retained:
            if value.grad is None:
                self._give(value)
        for leaf in _leaves(values):
            if leaf.grad is None and not self._is_ours(leaf):
                self._give(leaf)
        for module in self._left_out:
            for reached in self._reached.get(module, ()):
                parameter = reached()
                if parameter is not None and parameter.grad is None and parameter.requires_grad:
                    self._give(parameter)

    def take_back(self) -> None:
        """Called at the target, before what the recorded run had is put back: it may have had none
        where a forward is no part of the graph of the next backward."""
        for value, gradient in list(self._given.items()):
            if value.grad is gradient:
                value.grad = None

    def _give(self, value: torch.Tensor) -> None:
        value.grad = gradient = torch.zeros_like(value, requires_grad=False)
        self._given[value] = gradient

    def step_ended(self) -> None:
        self._since_update.clear()
        self._executed.clear()
        self._left_out.clear()


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
