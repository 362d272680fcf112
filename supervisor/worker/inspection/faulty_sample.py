"""Which sample of a batch makes a model's output non-finite or absurd."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from supervisor.numerics.forward.state_kept import state_kept
from supervisor.worker.evidence.anomaly_scene import named_tensors

_Test: TypeAlias = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], bool]

OUTLIER = 20.0
"""A sample's largest element, that many times the median sample's: of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultySample:
    """A sample of a batch; `row` is None without one.

    Attributes:
        row: its index in the batch.
        reason: what makes it the guilty one, to follow "sample 3 of the batch:".
        is_odd: its own values are the reason, not only what the model makes of them.
    """

    row: int | None = None
    reason: str = ""
    is_odd: bool = False


def culprit_sample(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    batch: Any,
    *,
    tries: bool = True,
) -> FaultySample:
    """Returns the guilty sample of the batch.

    The inputs are looked at row by row; then the batch is halved until one sample is left whose
    output, or gradient, is not finite. State and generators are afterwards as before.

    Args:
        model, args, kwargs: as it is called.
        batch: of the loader.
        tries: whether the model may be called with parts of the batch.
    """
    handed = [*named_tensors(batch).values(), *named_tensors([args, dict(kwargs)]).values()]
    rows = rows_of(handed)
    if rows is None or rows < 2:
        return FaultySample()
    handed = [t for t in handed if t.dim() and t.shape[0] == rows and t.is_floating_point()]
    for tensor in handed:
        row = _nonfinite_row(tensor)
        if row is not None:
            return FaultySample(row=row, reason="its own values are not finite", is_odd=True)
    outliers = [row for row in map(_outlying_row, handed) if row is not None]
    for sick, what in _TRIED if tries else ():
        with contextlib.suppress(Exception):  # a model that takes no other batch size
            row = _bisect(model, args, kwargs, rows, sick)
            if row is not None:
                reason = f"alone it makes the {what} non-finite"
                return FaultySample(row=row, reason=reason, is_odd=row in outliers)
    if outliers:
        reason = "its values are far from those of all others"
        return FaultySample(row=outliers[0], reason=reason, is_odd=True)
    return FaultySample()


def rows_of(tensors: list[torch.Tensor]) -> int | None:
    """Returns the usual first dimension of tensors, taken as their samples; None without any."""
    sizes = Counter(tensor.shape[0] for tensor in tensors if tensor.dim())
    return sizes.most_common(1)[0][0] if sizes else None


def _nonfinite_row(tensor: torch.Tensor) -> int | None:
    bad = ~torch.isfinite(tensor).reshape(tensor.shape[0], -1).all(dim=1)
    found = bad.nonzero().flatten()
    return int(found[0]) if 0 < len(found) < tensor.shape[0] else None


def _outlying_row(tensor: torch.Tensor) -> int | None:
    largest = tensor.detach().abs().float().reshape(tensor.shape[0], -1).amax(dim=1)
    row = int(largest.argmax())
    usual = float(largest.median())
    return row if usual > 0 and float(largest[row]) > OUTLIER * usual else None


def _bisect(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int, sick: _Test
) -> int | None:
    def is_sick(first: int, last: int) -> bool:
        def cut(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows:
                return value[first:last]
            return value

        return sick(model, pytree.tree_map(cut, args), pytree.tree_map(cut, dict(kwargs)))

    first, last = 0, rows
    with state_kept(model):
        if not is_sick(first, last):
            return None
        while last - first > 1:
            middle = (first + last) // 2
            if is_sick(first, middle):
                last = middle
            elif is_sick(middle, last):
                first = middle
            else:
                return None  # only together
        whole = is_sick(*((1, rows) if first == 0 else (0, first)))
    return None if whole else first  # all are sick: it is not the sample


def _bad_output(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    with torch.no_grad():
        return not _all_finite(named_tensors(model(*args, **kwargs)).values())


def _bad_gradient(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    with torch.enable_grad():
        outputs = named_tensors(model(*args, **kwargs)).values()
        roots = [t.float().sum() for t in outputs if t.requires_grad]
        weights = [p for p in model.parameters() if p.requires_grad]
        if not roots or not weights:
            return False
        gradients = torch.autograd.grad(roots, weights, allow_unused=True)
    return not _all_finite(g for g in gradients if g is not None)


_TRIED: tuple[tuple[_Test, str], ...] = ((_bad_output, "output"), (_bad_gradient, "gradient"))


def _all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
