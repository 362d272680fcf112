"""What a backward's hooks write to parameters beside `grad`: gradients of single samples, norms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.by_identity import ByIdentity

_ABSENT = object()


class GradientNotes:
    """Gives parameters again what a backward that was really executed wrote to them.

    An optimizer around another takes it (DP-SGD: ``p.grad_sample``) and clears it: without it the
    script would raise in a fast-forward. Tensors come as zeros of the last such backward's shape.
    """

    def __init__(self) -> None:
        self._kept: ByIdentity[torch.Tensor, dict[str, Any]] = ByIdentity()

    def before(self, optimizers: Iterable[Optimizer]) -> ByIdentity[torch.Tensor, dict[str, Any]]:
        """Returns what parameters hold; called before a backward is executed."""
        found: ByIdentity[torch.Tensor, dict[str, Any]] = ByIdentity()
        for parameter in _parameters(optimizers):
            found[parameter] = dict(vars(parameter))
        return found

    def executed(
        self,
        optimizers: Iterable[Optimizer],
        before: ByIdentity[torch.Tensor, dict[str, Any]],
    ) -> None:
        """Called behind that backward."""
        for parameter in _parameters(optimizers):
            earlier = before.get(parameter, {})
            written = {
                name: _zeros(value)
                for name, value in vars(parameter).items()
                if _holds_tensors(value) and earlier.get(name, _ABSENT) is not value
            }
            if written:
                self._kept[parameter] = written

    def give(self, optimizers: Iterable[Optimizer]) -> None:
        """Called in place of a backward."""
        if not self._kept:
            return
        for parameter in _parameters(optimizers):
            for name, value in self._kept.get(parameter, {}).items():
                if vars(parameter).get(name) is None:
                    setattr(parameter, name, _zeros(value))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


def _zeros(value: Any) -> Any:
    if isinstance(value, list):
        return [_zeros(item) for item in value]
    return torch.zeros_like(value, requires_grad=False)


def _parameters(optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
