"""How long each rank took for what it does alone in a step, in a file beside the flight recorder's.

One entry for each window of steps: its first step (u64), the median in seconds (f64).
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

WINDOW_STEPS = 64

_ENTRY = struct.Struct("<Qd")


def own_times_path(path: Path) -> Path:
    """Where they are for the flight recorder at `path`."""
    return path.with_name(path.name + ".own")


class OwnTimes:
    """Appends windows; the file is made with the first of them. One writer a file.

    Args:
        path: of the flight recorder.
    """

    def __init__(self, path: Path) -> None:
        self._path = own_times_path(path)

    def append(self, first_step: int, median_s: float) -> None:
        """Stores one window; on a full disk it is dropped."""
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(self._path, flags, 0o600)
            try:
                os.write(fd, _ENTRY.pack(first_step, median_s))
            finally:
                os.close(fd)


def read_own_times(path: Path) -> dict[int, float]:
    """Returns first step → median of the flight recorder at `path`, in the order of steps; of a
    window that was repeated, the last time. Empty where nothing was written.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        data = own_times_path(path).read_bytes()
    except FileNotFoundError:
        return {}
    whole = data[: len(data) - len(data) % _ENTRY.size]
    return dict(sorted(dict(_ENTRY.iter_unpack(whole)).items()))
