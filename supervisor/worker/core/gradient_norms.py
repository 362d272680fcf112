"""The norm of all gradients of an update."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._C import TensorBase
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

_HALF = (torch.float16, torch.bfloat16)


def gradient_norm(parameters: Iterable[torch.Tensor]) -> float | None:
    """Global L2 norm of the gradients of `parameters`, read at once; None if there are none."""
    norm = norm_of_gradients(gradients_of(parameters))
    return None if norm is None else float(norm)


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Of those that have one."""
    return [g for p in parameters if (g := p.grad) is not None]


def norm_of_gradients(grads: Sequence[torch.Tensor]) -> torch.Tensor | float | None:
    """The same of these gradients, where they are alike still on their device.

    Summed up in float32, in which half gradients do not overflow; to the bit as torch's own
    clipping calculates it.
    """
    if not grads:
        return None
    norms = _norms_of_floats(grads)
    return _norm_of_any(grads) if norms is None else torch.linalg.vector_norm(norms)


SMALL, TOGETHER = 2048, 1 << 16
"""Numbers of a gradient that is copied with others of its shape, which costs a tenth of a norm of
each and gives the same bits; and of such a copy, which stays in the processor's cache."""
FEWEST = 4
"""Gradients of one shape that are worth a copy."""
MOST_PLANS = 16
_PLAIN = {torch.Tensor}
_IS_SPARSE = operator.attrgetter("is_sparse")
_IS_CONTIGUOUS = TensorBase.is_contiguous
_DTYPE = operator.attrgetter("dtype")
_FLOAT = {torch.float32}


class _Plan:
    """Which gradients of a list are copied together. It fits each list in which these have one
    shape, as torch finds out when it copies them."""

    def __init__(self, grads: Sequence[torch.Tensor]) -> None:
        alike: dict[torch.Size, list[int]] = {}
        alone: list[int] = []
        for place, gradient in enumerate(grads):
            is_small = 0 < gradient.numel() <= SMALL and not gradient.is_sparse
            fits = is_small and gradient.is_contiguous()
            (alike.setdefault(gradient.shape, []) if fits else alone).append(place)
        rows: list[list[int]] = []
        for shape, places in alike.items():
            size = TOGETHER // max(1, shape.numel()) if len(places) >= FEWEST else 1
            rows += [places[start : start + size] for start in range(0, len(places), size)]
        self._alone = sorted(alone + [row.pop() for row in rows if len(row) == 1])
        self._rows = [operator.itemgetter(*row) for row in rows if row]
        order = [place for row in rows for place in row] + self._alone
        self._order = torch.tensor(order, device="cpu").argsort() if self._rows else None

    def norms(self, grads: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Of each gradient; None unless they are dense ones of float32 on the CPU.

        Raises:
            RuntimeError: another plan is needed, or some are sparse, or on another device.
        """
        found: list[torch.Tensor] = []
        for pick in self._rows:
            alike = pick(grads)
            if alike[0].numel() > SMALL or not all(map(_IS_CONTIGUOUS, alike)):
                raise RuntimeError("not those that were planned")
            rows = torch.stack(alike).view(len(alike), -1)
            if not (rows.is_cpu and rows.dtype is torch.float32):
                return None
            found.append(torch.linalg.vector_norm(rows, dim=1))
        if self._alone:
            alone = [grads[place] for place in self._alone]
            if any(map(_IS_SPARSE, alone)) or not _FLOAT.issuperset(map(_DTYPE, alone)):
                return None
            found.append(torch.stack(torch._foreach_norm(alone)))
            if not found[-1].is_cpu:
                return None
        return found[0] if self._order is None else torch.cat(found).index_select(0, self._order)


_plans: dict[int, _Plan] = {}
"""By the number of gradients: the last one that fitted."""


def _norms_of_floats(grads: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Of each; None unless they are dense ones of float32 on the CPU."""
    first = grads[0]
    if not (_PLAIN.issuperset(map(type, grads)) and first.is_cpu and first.dtype is torch.float32):
        return None
    for is_new in (False, True):
        try:
            if is_new or len(grads) not in _plans:
                if len(_plans) >= MOST_PLANS:
                    _plans.clear()
                _plans[len(grads)] = _Plan(grads)
            return _plans[len(grads)].norms(grads)
        except RuntimeError:
            continue
    return None


def _norm_of_any(grads: Sequence[torch.Tensor]) -> torch.Tensor | float:
    """The same of gradients that are not all dense ones of float32 on the CPU."""
    dense = [g.to_dense() if g.is_sparse else g for g in grads]
    if _PLAIN.issuperset(map(type, dense)):
        return _norm(dense)
    kinds: dict[Any, list[torch.Tensor]] = {}
    for g in dense:
        kinds.setdefault((type(g), getattr(g, "device_mesh", None)), []).append(g)
    if len(kinds) > 1:  # some layers are spread over ranks, and not all alike
        return math.hypot(*(float(_norm(alike)) for alike in kinds.values()))
    return _norm(dense)


def _norm(dense: list[torch.Tensor]) -> torch.Tensor | float:
    if len(_group_tensors_by_device_and_dtype([dense])) > 1:  # type: ignore[list-item]
        each = [torch.linalg.vector_norm(_real(g).float()) for g in dense]
        if len({g.device for g in dense}) > 1:
            return math.sqrt(sum(float(norm) ** 2 for norm in each))
        return torch.stack(each).double().square().sum().sqrt()
    kind = torch.float32 if dense[0].dtype in _HALF else None
    norms = torch._foreach_norm(dense, 2, kind)
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms).float())
    return norm


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
