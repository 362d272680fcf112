"""Handles of what ranks exchange while the script goes on (`async_op=True`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

HANDLES: tuple[type, ...] = (
    torch._C.Future,
    *((torch.distributed.Work,) if torch.distributed.is_available() else ()),
)
STILL_UNDER_WAY = "is an exchange between ranks that is still under way"
_NAP_S = 0.0005


def wait_for(handle: Any, until: float) -> None:
    """Returns when an exchange is done.

    Args:
        handle: one of `HANDLES`.
        until: how long to wait, in the time of `time.monotonic`.
    """
    while not _is_done(handle) and time.monotonic() < until:
        time.sleep(_NAP_S)


def still_under_way(handles: Mapping[str, Any]) -> list[str]:
    """Returns a line for each exchange that is not done.

    Args:
        handles: by the paths that lead to them.
    """
    return [f"{path} {STILL_UNDER_WAY}" for path, one in handles.items() if not _is_done(one)]


def came_of(handle: Any) -> Any:
    """Returns what has come; None where it is not done, has failed, or its backend cannot tell."""
    try:
        if not _is_done(handle):
            return None
        future = handle if isinstance(handle, torch._C.Future) else handle.get_future()
        return future.value() if future.done() else None
    except Exception:  # the task's own, or that of a backend without futures
        return None


def _is_done(handle: Any) -> bool:
    is_future = isinstance(handle, torch._C.Future)
    return bool(handle.done() if is_future else handle.is_completed())
