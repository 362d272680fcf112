"""Whether two results are the same, and by how much they differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

SUMS = 64.0
"""Units in the last place of a tensor's largest value, in FP32: the order in which a long sum is
added moves its elements by a few."""
ELEMENTS = 4.0
"""Units in the last place of the element itself, in its type: FP16 and BF16 are summed in FP32."""


def are_same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors are equal to the bit, also where they are NaN."""
    return all(map(_is_same, some, others))


def differing(wrong: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns the flat places at which two tensors differ, that of the largest difference first."""
    places = torch.nonzero((_bits(wrong) != _bits(right)).reshape(-1)).reshape(-1)
    return places[torch.argsort(_apart(wrong, right)[places], descending=True)]


def distance(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[float]:
    """Returns for each pair of tensors the largest difference between two elements; infinite if
    only one of them is finite."""
    return [_largest(_apart(one, other)) for one, other in zip(some, others, strict=True)]


def beyond_rounding(wrong: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> list[float]:
    """Returns for each pair of tensors how much more than rounding the elements differ, at most;
    0 if rounding explains all."""
    return [
        _largest((_apart(one, other) - _rounding(other)).clamp(min=0.0))
        for one, other in zip(wrong, right, strict=True)
    ]


def _rounding(tensor: torch.Tensor) -> torch.Tensor:
    values = _flat(tensor).abs().nan_to_num(0.0, 0.0, 0.0)
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or not values.numel():
        return torch.zeros_like(values)
    unit = torch.finfo(tensor.dtype).eps
    sums = SUMS * min(unit, torch.finfo(torch.float32).eps)
    return sums * values.max() + ELEMENTS * unit * values


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


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    some, others = _flat(one), _flat(other)
    both = some.isnan() & others.isnan() | (some == others)
    far = (some - others).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    return far.masked_fill(both, 0.0)


def _largest(values: torch.Tensor) -> float:
    return float(torch._C.TensorBase.item(values.max())) if values.numel() else 0.0
