"""Whether a restored state is the saved one, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import torch

from supervisor.training_state.tensors import local, outside_autograd, walk


def first_difference(saved: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Returns the path of the first value that differs, None if none does.

    Bits are compared, so equal NaNs are equal. Device tensors are copied to the host one by one.

    Args:
        saved: parts of a state, from `read_state` or `copy_state`.
        live: the same parts, from `TrainingState.capture`.
    """
    with outside_autograd():
        for one, other in zip_longest(walk(dict(saved)), walk(dict(live))):
            if one is None or other is None:
                return str((one or other)[0])
            if one[0] != other[0]:
                return str(min(one[0], other[0]))  # both are sorted: it is missing in the other
            if not _is_same(one[1], other[1]):
                return str(one[0])
    return None


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or local(one).shape != local(other).shape:
            return False
        return torch.equal(_bits(one), _bits(other))
    # repr tells -0.0 from 0.0 and 1 from True, and finds NaN equal to itself.
    return type(one) is type(other) and repr(one) == repr(other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = local(tensor).cpu()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    return plain.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
