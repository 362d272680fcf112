"""Whether two results are the same, and by how much they differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

ROUNDING = 64.0
"""Units in the last place of a result's largest value. The order in which a long sum is added moves
it by a few; 64 hide no bit above the seventh of the mantissa."""


def are_same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors are equal to the bit, also where they are NaN."""
    return all(map(_is_same, some, others))


def differing(wrong: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns the flat places at which two tensors differ, that of the largest difference first."""
    places = torch.nonzero((_bits(wrong) != _bits(right)).reshape(-1)).reshape(-1)
    far = _distance(_flat(wrong)[places], _flat(right)[places])
    return places[torch.argsort(far, descending=True)]


def distance(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[float]:
    """Returns for each pair of tensors the largest difference between two elements; infinite if
    only one of them is finite."""
    return [
        float(torch._C.TensorBase.item(_distance(_flat(one), _flat(other)).max()))
        if one.numel()
        else 0.0
        for one, other in zip(some, others, strict=True)
    ]


def rounding(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Returns for each tensor the difference that may be rounding; 0 for whole numbers."""
    return [_rounding(tensor) for tensor in tensors]


def _rounding(tensor: torch.Tensor) -> float:
    values = _real(tensor)
    if not values.is_floating_point() or not values.numel():
        return 0.0
    largest = _flat(tensor).abs().nan_to_num(0.0, 0.0, 0.0).max()
    return ROUNDING * torch.finfo(values.dtype).eps * float(torch._C.TensorBase.item(largest))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(_bits(one), _bits(other))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(whole) if whole.dtype.is_complex else whole


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    values = _real(tensor)
    return values.view(_INTEGERS[values.element_size()])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return _real(tensor).reshape(-1).double()


def _distance(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    far = (some - others).abs()
    both = some.isnan() & others.isnan() | (some == others)
    return far.nan_to_num(torch.inf, torch.inf, torch.inf).masked_fill(both, 0.0)
