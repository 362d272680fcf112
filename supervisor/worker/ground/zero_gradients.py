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
        self._writes: dict[int, int] = {}  # that torch counted when they were made, by their ids
        self._sparse: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def saw(self, optimizers: Iterable[Optimizer]) -> None:
        """Called where a backward was really executed: from here on a parameter whose gradient it
        left sparse gets a sparse one."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if gradient is not None and gradient.layout == torch.sparse_coo:
                        self._sparse[id(parameter)] = weakref.ref(parameter), gradient.detach()

    def give(self, optimizers: Iterable[Optimizer]) -> None:
        """Called in place of a backward."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None and parameter.requires_grad:
                        parameter.grad = self.of(parameter)

    def are_still_zero(self, gradient: torch.Tensor) -> bool:
        """Whether it was given here, and nobody has written to it since."""
        writes = self._writes.get(id(gradient))
        return writes is not None and writes == gradient._version

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns what a parameter gets."""
        known = self._known.get(id(parameter))
        if known is None or known[0]() is not parameter:
            if known is not None:
                self._writes.pop(id(known[1]), None)
            like, sparse = self._sparse.get(id(parameter), (None, parameter))
            is_sparse = like is not None and like() is parameter
            if is_sparse:
                zeros = _sparse_zeros(sparse)
            else:
                zeros = torch.zeros_like(parameter, requires_grad=False)
            known = self._known[id(parameter)] = (weakref.ref(parameter), zeros)
            if not zeros.is_inference():
                self._writes[id(zeros)] = zeros._version
        return known[1]


def _sparse_zeros(gradient: torch.Tensor) -> torch.Tensor:
    """Returns zeros at the same rows."""
    indices, values = gradient._indices(), torch.zeros_like(gradient._values())
    zeros = torch.sparse_coo_tensor(indices.clone(), values, gradient.shape)
    return zeros._coalesced_(gradient.is_coalesced())
