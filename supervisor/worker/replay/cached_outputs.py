"""What forwards put out during a fast-forward: the output of the first such call, again."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Module
from torch.utils import _pytree as pytree

from supervisor.worker.ground.step_probe import tensors_in
from supervisor.worker.interception.training_hooks import Call


class CachedOutputs:
    """Computes one forward for each module, mode and kind of input, and hands out copies of it.

    The values are of no use; shapes, types and structure are what the script goes on with.

    Attributes:
        is_first: an output was handed out that leads back to the module's weights, for the first
            time; whoever runs the backward takes it back.
    """

    def __init__(self) -> None:
        self.is_first = False
        self._known: dict[tuple[Any, ...], tuple[weakref.ref[Module], Any]] = {}

    def output(
        self, module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        """Returns an output that the script may change in place and call backward on.

        The first of its kind is that of the real forward, so that hooks on gradients can run once.
        The random generators are as before.

        Args:
            module, args, kwargs: of the call.
            call: runs the real forward.
        """
        signature = (
            id(module),
            module.training,
            tuple((t.shape, t.dtype) for t in tensors_in(args, kwargs)),
            tuple(v for v in (*args, *kwargs.values()) if isinstance(v, (int, str, bool))),
        )
        known = self._known.get(signature)
        if known is None or known[0]() is not module:  # the id may be that of one long gone
            # Not under no_grad: a forward may ask for a gradient itself, as for a force.
            random_state = torch.get_rng_state()
            output = call()
            copied = pytree.tree_map_only(torch.Tensor, _copy, output)
            self._known[signature] = (weakref.ref(module), copied)
            torch.set_rng_state(random_state)
            self.is_first = self.is_first or torch.is_grad_enabled()
            return output
        return _fresh(known[1], torch.is_grad_enabled())


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _fresh(output: Any, wants_grad: bool) -> Any:
    def again(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.copy(value) if isinstance(value, (list, dict)) else value
        clone = value.clone()
        if wants_grad and clone.is_floating_point():
            clone.requires_grad_()
            clone = clone * 1  # not a leaf: the script may write into it
        return clone

    return pytree.tree_map(again, output)
