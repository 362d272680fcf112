"""The few facts that the patched functions of torch look at on every call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: what is called is noted, not computed. A value read
    there, or the state of a generator, ends the capture with an error."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class InterceptionState:
    """Whether, and where within a step, the patched functions should do anything.

    Attributes:
        active: False before the session begins, after it ended, and in forked children (loader
            workers): then every patched function is the original one.
        depth: above 0 inside a region (an outermost forward, a backward, an update): what happens
            there belongs to the region and is neither seen nor recorded on its own.
        replaying: a fast-forward is under way.
        thread: identifier of the training's own thread.
    """

    __slots__ = ("_lent", "active", "depth", "replaying", "thread")

    def __init__(self) -> None:
        self.active = False
        self.depth = 0
        self.replaying = False
        self.thread = threading.get_ident()
        self._lent = threading.RLock()

    def is_ours(self) -> bool:
        """Whether a call outside of any region comes from the training's own thread, and is really
        carried out."""
        return (
            self.active
            and not self.depth
            and threading.get_ident() == self.thread
            and not is_capturing()
        )

    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        """What happens inside is ours, not the script's."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextlib.contextmanager
    def scripts_own(self) -> Iterator[bool]:
        """What happens inside is the script's again, within a region; torch may call it in another
        thread, while the training's own one waits.

        Yields:
            Whether it is: not in a second thread (of another device) beside a first one.
        """
        if not self._lent.acquire(blocking=False):
            yield False
            return
        earlier = self.depth, self.thread
        self.depth, self.thread = 0, threading.get_ident()
        try:
            yield True
        finally:
            self.depth, self.thread = earlier
            self._lent.release()

    def turn_off(self, *_: Any) -> None:
        self.active = False
        self.replaying = False
