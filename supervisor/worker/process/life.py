"""A sign of life beside the steps: a mapped counter that batches and forwards push on."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from supervisor.storage.files.private_files import make_private

_COUNT = struct.Struct("<Q")


class SignOfLife:
    """Eight bytes that the parent looks at: they change while the training does anything."""

    def __init__(self, path: Path) -> None:
        make_private(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 8)
            self._map = mmap.mmap(descriptor, 8)
        finally:
            os.close(descriptor)
        self._count = 0
        self._last_step = -1

    def beat(self, step: int) -> None:
        """Called by batches and forwards; the first of each step is silent.

        A step's row in the flight recorder is a sign by itself; evaluation and slow loaders have
        no other than this.
        """
        if step != self._last_step:
            self._last_step = step
            return
        self.count()

    def count(self) -> None:
        """Called for what is progress in any case: the batches and steps of a fast-forward, which
        leave no row in the flight recorder."""
        self._count += 1
        _COUNT.pack_into(self._map, 0, self._count)
