"""A small mapped file at which the ranks of one node wait for each other in a replay."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from supervisor.storage.files.private_files import make_private

TIMEOUT_S = 60.0
"""A rank that does not come for so long is not waited for any more, here and later."""
_ENTRY_BYTES = 8
_GONE = 2**63
_PAUSE_S = 1e-3


class MeetingPlace:
    """Counts of each rank how often it was here. No rank waits for one that has left.

    Args:
        path: the same for all ranks; created by whoever comes first. A new file for each attempt.
        rank: among the ranks of this node.
        ranks: how many there are.

    Raises:
        OSError: it cannot be created or mapped.
    """

    def __init__(self, path: Path, rank: int, ranks: int, *, timeout_s: float = TIMEOUT_S) -> None:
        make_private(path.parent)
        size = ranks * _ENTRY_BYTES
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._counts = memoryview(mmap.mmap(descriptor, size)).cast("Q")
        finally:
            os.close(descriptor)
        self._rank = rank
        self._others = [other for other in range(ranks) if other != rank]
        self._timeout_s = timeout_s
        self._count = 0

    def wait(self) -> None:
        """Returns when all ranks have called this as often, or have left, or it took too long."""
        self._count += 1
        self._counts[self._rank] = self._count
        deadline = time.monotonic() + self._timeout_s
        for other in list(self._others):
            while self._counts[other] < self._count:
                if time.monotonic() > deadline:
                    self._others.remove(other)
                    break
                time.sleep(_PAUSE_S)

    def leave(self) -> None:
        """The others are not to wait for this rank any more."""
        self._counts[self._rank] = _GONE
