"""Threads of executors that still work when a replay arrives: what they save is that of the replay.

A replay is faster than the training was, so an asynchronous save (`dcp.async_save`, an executor of
the script) may still be under way at the target. It would write an untrained model over files that
have just come back.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import thread as executors
from types import FrameType

_LIMIT_S = 10.0
_POLL_S = 0.005
_IDLE = executors._worker.__code__


def wait_for_executors(limit_s: float = _LIMIT_S) -> list[str]:
    """Waits until no thread of an executor works; those that wait for others count as idle.

    Args:
        limit_s: after so many seconds it waits no longer.

    Returns:
        The names of those that still worked then.
    """
    until = time.monotonic() + limit_s
    while busy := _busy():
        if time.monotonic() >= until:
            return busy
        time.sleep(_POLL_S)
    return []


def _busy() -> list[str]:
    frames = sys._current_frames()
    queues = executors._threads_queues
    return [
        thread.name
        for thread, waiting in list(queues.items())
        if thread.is_alive() and not (waiting.empty() and _is_idle(frames.get(thread.ident or 0)))
    ]


def _is_idle(frame: FrameType | None) -> bool:
    """Whether a thread waits: for work, or for another one, perhaps the training."""
    if frame is None or frame.f_code is _IDLE:
        return True
    return frame.f_code.co_filename == threading.__file__
