"""A machine that calculates some operators wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class SickMachine(TorchDispatchMode):
    """On beneath whatever is put on later: changes results of one operator.

    Args:
        operator: as in ``aten.mm.default``.
        wrong: called with the number of the call and its result; changes it in place.
    """

    def __init__(self, operator: str, wrong: Callable[[int, torch.Tensor], None]) -> None:
        super().__init__()
        self.calls = 0
        self._operator = operator
        self._wrong = wrong

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        if str(operator) == self._operator:
            with torch._C._AutoDispatchBelowAutograd():
                self._wrong(self.calls, result)
            self.calls += 1
        return result


def flip(result: torch.Tensor, *, place: int = 0, bit: int = 30) -> None:
    """Flips one bit of an element of a float32 tensor."""
    result.view(torch.int32).reshape(-1)[place] ^= 1 << bit
