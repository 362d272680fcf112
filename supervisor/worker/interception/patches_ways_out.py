"""The patches by which a replay sees values leave a tensor without any operation of torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from supervisor.worker.interception.patches_reads import MAX_LISTED

_WAYS_OUT = {
    **{"numpy": MAX_LISTED, "tolist": MAX_LISTED, "__repr__": 1},
    **{"__dlpack__": 0, "__reduce_ex__": 0, "untyped_storage": 0, "storage": 0},
}
"""Methods, and of how many elements the tape holds what they give."""


def watch_ways_out(asked: Callable[[torch.Tensor, str], None]) -> Callable[[], None]:
    """Has `asked` called before each of these methods; returns what takes the patches back.

    Called after `watch_reads`, for the time of a replay.
    """
    originals = {name: getattr(torch.Tensor, name) for name in _WAYS_OUT}
    for name, original in originals.items():
        setattr(torch.Tensor, name, _asking(name, original, asked))

    def restore() -> None:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)

    return restore


def _asking(
    name: str, original: Callable[..., Any], asked: Callable[[torch.Tensor, str], None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() > _WAYS_OUT[name]:
            asked(tensor, name)
        return original(tensor, *args, **kwargs)

    return read
