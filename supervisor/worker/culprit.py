"""Which sample of a batch makes a model's output non-finite or absurd."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from supervisor.worker.anomaly_scene import named_tensors

OUTLIER = 20.0
"""A sample's largest element, that many times the median sample's: of another kind."""


def culprit_sample(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: Any
) -> tuple[int | None, str]:
    """Returns the index of the guilty sample in the batch, None without one, and why it is it.

    First what the loader and the script hand over is looked at, row by row; then the batch is
    halved and passed forward, without gradients, until one sample is left. State and generators
    are afterwards as before.
    """
    handed = [*named_tensors(batch).values(), *named_tensors([args, dict(kwargs)]).values()]
    rows = _usual_rows(handed)
    if rows < 2:
        return None, ""
    for tensor in handed:
        if tensor.dim() and tensor.shape[0] == rows and tensor.is_floating_point():
            row = _nonfinite_row(tensor)
            if row is not None:
                return row, "its own values are not finite"
    with contextlib.suppress(Exception):  # a model that takes no other batch size
        row = _bisect(model, args, kwargs, rows)
        if row is not None:
            return row, "alone it makes the output non-finite"
    for tensor in handed:
        if tensor.dim() and tensor.shape[0] == rows and tensor.is_floating_point():
            row = _outlying_row(tensor)
            if row is not None:
                return row, "its values are far from those of all others"
    return None, ""


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
