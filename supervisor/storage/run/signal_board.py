"""What a worker tells its parent about signals while it runs, in a small mapped file.

The parent must know before it sends one: on which signal stacks are written, and whether the
worker was sent the same signal by somebody else a moment ago.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from supervisor.storage.files.private_files import make_private

_TIME = struct.Struct("<d")
_SIGNALS = 65
"""As many as Linux has, and place 0 for the number of the signal that writes stacks."""


class SignalBoard:
    """The worker's side: a time for each signal, of its last arrival, in unix seconds."""

    def __init__(self, path: Path) -> None:
        """Begins with no arrivals.

        Raises:
            OSError: the disk refuses.
        """
        make_private(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, bytes(_SIGNALS * _TIME.size))  # has its room on the disk from here
            self._map = mmap.mmap(descriptor, _SIGNALS * _TIME.size)
        finally:
            os.close(descriptor)

    def arrived(self, signum: int, time: float) -> None:
        if 0 < signum < _SIGNALS:
            _TIME.pack_into(self._map, signum * _TIME.size, time)

    def stacks_come_by(self, signum: int) -> None:
        _TIME.pack_into(self._map, 0, float(signum))


def arrived_at(path: Path, signum: int) -> float:
    """Returns when the worker was last sent this signal, by whomever; 0 for never, or unknown."""
    return _read(path, signum)


def stacks_signal(path: Path) -> int:
    """Returns the signal on which the worker writes its stacks; 0 if there is none."""
    return int(_read(path, 0))


def _read(path: Path, place: int) -> float:
    try:
        data = path.read_bytes()[place * _TIME.size :][: _TIME.size]
    except OSError:
        return 0.0
    return float(_TIME.unpack(data)[0]) if len(data) == _TIME.size else 0.0
