"""A process that SIGKILL does not end: the kernel waits in it for a device or a disk."""

from __future__ import annotations

import signal
from collections.abc import Iterable

LEFT_BEHIND_AFTER_S = 60.0
"""A dump of a large process's memory, or the end of a GPU's context, may take seconds."""


class Unkillable:
    """Knows since when SIGKILL should have ended all. Pure: the caller brings the clock."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def is_there(self, signals_sent: Iterable[Iterable[int]], now_s: float) -> bool:
        """Returns whether a process that still lives is waited for no longer.

        Args:
            signals_sent: to each of those that were started.
            now_s: on any monotonic clock.
        """
        if self._since_s is None:
            if any(signal.SIGKILL in sent for sent in signals_sent):
                self._since_s = now_s
            return False
        return now_s - self._since_s > LEFT_BEHIND_AFTER_S
