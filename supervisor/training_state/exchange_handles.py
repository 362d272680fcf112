"""Handles of what ranks exchange while the script goes on (`async_op=True`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

HANDLES: tuple[type, ...] = (
    torch.futures.Future,
    *((torch.distributed.Work,) if torch.distributed.is_available() else ()),
)
STILL_UNDER_WAY = "is an exchange between ranks that is still under way"
_NAP_S = 0.0005


def not_done_within(seconds: float, handles: Mapping[str, Any]) -> list[str]:
    """Waits for exchanges; returns a line for each that is not done by then.

    Args:
        handles: by the paths that lead to them.
    """
    until = time.monotonic() + seconds
    for handle in handles.values():
        while not _is_done(handle) and time.monotonic() < until:
            time.sleep(_NAP_S)
    return [f"{path} {STILL_UNDER_WAY}" for path, one in handles.items() if not _is_done(one)]


def _is_done(handle: Any) -> bool:
    is_future = isinstance(handle, torch.futures.Future)
    return bool(handle.done() if is_future else handle.is_completed())
