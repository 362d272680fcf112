"""Which sample of a batch makes a model's output non-finite or absurd."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from supervisor.worker.anomaly_scene import named_tensors

OUTLIER = 20.0
"""A sample's largest element, that many times the median sample's: of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
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
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: Any
) -> Culprit:
    """Returns the guilty sample of the batch.

    First what the loader and the script hand over is looked at, row by row; then the batch is
    halved and passed forward, without gradients, until one sample is left. State and generators
    are afterwards as before.
    """
    handed = [*named_tensors(batch).values(), *named_tensors([args, dict(kwargs)]).values()]
    rows = _usual_rows(handed)
    if rows < 2:
        return Culprit()
    handed = [t for t in handed if t.dim() and t.shape[0] == rows and t.is_floating_point()]
    for tensor in handed:
        row = _nonfinite_row(tensor)
        if row is not None:
            return Culprit(row=row, reason="its own values are not finite", is_odd=True)
    outliers = [row for row in map(_outlying_row, handed) if row is not None]
    with contextlib.suppress(Exception):  # a model that takes no other batch size
        row = _bisect(model, args, kwargs, rows)
        if row is not None:
            reason = "alone it makes the output non-finite"
            return Culprit(row=row, reason=reason, is_odd=row in outliers)
    if outliers:
        reason = "its values are far from those of all others"
        return Culprit(row=outliers[0], reason=reason, is_odd=True)
    return Culprit()


def _usual_rows(tensors: list[torch.Tensor]) -> int:
    sizes = Counter(tensor.shape[0] for tensor in tensors if tensor.dim())
    return sizes.most_common(1)[0][0] if sizes else 0


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
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int
) -> int | None:
    first, last = 0, rows
    with _kept(model):
        if not _is_sick(model, args, kwargs, rows, first, last):
            return None
        while last - first > 1:
            middle = (first + last) // 2
            if _is_sick(model, args, kwargs, rows, first, middle):
                last = middle
            elif _is_sick(model, args, kwargs, rows, middle, last):
                first = middle
            else:
                return None  # only together
        whole = _is_sick(model, args, kwargs, rows, *((1, rows) if first == 0 else (0, first)))
    return None if whole else first  # all are sick: it is not the sample


def _is_sick(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    rows: int,
    first: int,
    last: int,
) -> bool:
    def cut(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows:
            return value[first:last]
        return value

    output = model(*pytree.tree_map(cut, args), **pytree.tree_map(cut, dict(kwargs)))
    return any(not bool(torch.isfinite(t).all()) for t in named_tensors(output).values())


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)), torch.no_grad():
        try:
            yield
        finally:
            for buffer, value in buffers:
                buffer.copy_(value)
