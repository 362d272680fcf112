"""A result that the machine has calculated wrongly, as it is told."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from supervisor.training_state.bounds.flipped_bit import flipped_bit
from supervisor.training_state.registry import Registry
from supervisor.worker.compute_check.bits import differing
from supervisor.worker.compute_check.doubled_operators import OddResult


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongResult:
    """One wrong result of an operator.

    Attributes:
        name: operator and phase, and the parameter that it reads, if one.
        elements: how many were wrong.
        index: of the element that was farthest off.
        value, right: what it was, and what the repetitions give.
        bit: whose flip explains it, if one does.
        in_training: see `OddResult`.
        is_replaced: see `OddResult`.
    """

    name: str
    elements: int
    index: tuple[int, ...]
    value: float
    right: float
    bit: int | None
    in_training: bool
    is_replaced: bool

    def sentence(self) -> str:
        """Says it in words."""
        where = ", ".join(map(str, self.index))
        more = f" (and {self.elements - 1} more elements)" if self.elements > 1 else ""
        flipped = f" (bit {self.bit} flipped)" if self.bit is not None else ""
        whose = "four repetitions give" if self.in_training else "in a repetition; four others give"
        return f"{self.name}[{where}] is {self.value:.6g}{flipped}{more}; {whose} {self.right:.6g}"


def described(odd: OddResult, phase: str, registry: Registry) -> WrongResult:
    """Finds the worst element, and the parameter by its memory."""
    places = differing(odd.wrong, odd.right)
    value, right = _at(odd.wrong, places), _at(odd.right, places)
    read = _parameter(odd, registry)
    return WrongResult(
        name=f"{odd.operator} in the {phase}" + (f", with {read}" if read else ""),
        elements=places.numel(),
        index=_index(odd.wrong.shape, int(torch._C.TensorBase.item(places[0]))),
        value=value,
        right=right,
        bit=flipped_bit(value, right, abs(right) * _LAST_PLACES, odd.wrong.dtype),
        in_training=odd.in_training,
        is_replaced=odd.is_replaced,
    )


_LAST_PLACES = 1e-6
"""A flipped bit leaves all others as they are; a sum of many may be rounded otherwise."""


def _at(tensor: torch.Tensor, places: torch.Tensor) -> float:
    values = torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
    # Not `.item()`: this read is ours, and is not on the tape.
    return float(torch._C.TensorBase.item(values.detach().reshape(-1)[places[0]]))


def _index(shape: torch.Size, place: int) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        found.append(place % size)
        place //= size
    return tuple(reversed(found))


def _parameter(odd: OddResult, registry: Registry) -> str | None:
    memory = {tensor.untyped_storage().data_ptr() for tensor in odd.inputs if tensor.numel()}
    for model, root in registry.models.items():
        for name, parameter in root.named_parameters():
            if parameter.numel() and parameter.untyped_storage().data_ptr() in memory:
                return f"{model}.{name}" if len(registry.models) > 1 else name
    return None
