"""Gradients that a script may look at during a fast-forward: zeros."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from supervisor.by_identity import ByIdentity


class ZeroGradients:
    """Gives ``p.grad`` to parameters that have none; no optimizer gets to see it."""

    def __init__(self) -> None:
        self._known: ByIdentity[torch.Tensor, torch.Tensor] = ByIdentity()
        # Zeros → how many writes torch had counted when they were made.
        self._writes: ByIdentity[torch.Tensor, int] = ByIdentity()
        self._sparse: ByIdentity[torch.Tensor, torch.Tensor] = ByIdentity()

    def saw(self, optimizers: Iterable[Optimizer]) -> None:
        """Called where a backward was really executed: from here on a parameter whose gradient it
        left sparse gets a sparse one."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if gradient is not None and gradient.layout == torch.sparse_coo:
                        self._sparse[parameter] = gradient.detach()

    def give(self, optimizers: Iterable[Optimizer]) -> None:
        """Called in place of a backward."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None and parameter.requires_grad:
                        parameter.grad = self.of(parameter)

    def are_still_zero(self, gradient: torch.Tensor) -> bool:
        """Whether it was given here, and nobody has written to it since."""
        writes = self._writes.get(gradient)
        return writes is not None and bool(writes == gradient._version)

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns what a parameter gets."""
        zeros: torch.Tensor | None = self._known.get(parameter)
        if zeros is None:
            sparse = self._sparse.get(parameter)
            if sparse is not None:
                zeros = _sparse_zeros(sparse)
            else:
                zeros = torch.zeros_like(parameter, requires_grad=False)
            self._known[parameter] = zeros
            if not zeros.is_inference():
                self._writes[zeros] = zeros._version
        return zeros


def _sparse_zeros(gradient: torch.Tensor) -> torch.Tensor:
    """Returns zeros at the same rows."""
    indices, values = gradient._indices(), torch.zeros_like(gradient._values())
    zeros = torch.sparse_coo_tensor(indices.clone(), values, gradient.shape)
    return zeros._coalesced_(gradient.is_coalesced())
