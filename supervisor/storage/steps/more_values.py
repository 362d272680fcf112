"""Observed values beyond the slots of a flight recorder's row, in a file beside it.

One entry per value, by row: row (u64), slot (u64), value (f64). A step's entries are written before
its row is counted, so that readers of the row see them too.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

ENTRY = struct.Struct("<QQd")
ENTRY_DTYPE = np.dtype([("row", "<u8"), ("slot", "<u8"), ("value", "<f8")])
ENTRIES_AT_ONCE = 1 << 18
"""Entries that are read together where many are read: 6 MB."""
MAX_NAMES = 256
"""Names in all: a script that keeps inventing names must not fill the disk."""


def more_path(path: Path) -> Path:
    """Where the additional values of the flight recorder at `path` are."""
    return path.with_name(path.name + ".more")


class MoreValues:
    """Appends additional values; the file is created with the first of them.

    It stays below its budget: past half of it only every fourth row's values are kept, past half of
    the rest every sixteenth row's, and so on.

    Args:
        path: of the flight recorder.
        rows: rows that it has; entries of later ones belong to rows that were never counted, and
            are dropped.
        max_bytes: the budget.
        on_thinned: called with the new spacing of the rows that are kept.
    """

    def __init__(
        self,
        path: Path,
        rows: int,
        *,
        max_bytes: float = math.inf,
        on_thinned: Callable[[int], None] = lambda apart: None,
    ) -> None:
        self._path = more_path(path)
        self._fd = -1
        self._max_bytes = max_bytes
        self._on_thinned = on_thinned
        self._apart = 1
        self._offered = -1
        if self._path.exists():
            self._open()
            os.ftruncate(self._fd, ENTRY.size * _first_of(self._fd, rows))

    def append(self, row: int, values: Sequence[tuple[int, float]]) -> None:
        """Stores (slot, value) of a row not counted yet; on a full disk they are dropped."""
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._open()
            end = os.fstat(self._fd).st_size
            self._thin(end)
            self._offered += 1
            if self._max_bytes <= 0 or self._offered % self._apart:
                return
            data = b"".join(ENTRY.pack(row, slot, value) for slot, value in values)
            if os.write(self._fd, data) != len(data):
                os.ftruncate(self._fd, end)

    def _thin(self, size: int) -> None:
        before = self._apart
        while size >= self._max_bytes * (1.0 - 0.5 / math.sqrt(self._apart)) < self._max_bytes:
            self._apart *= 4
        if self._apart > before:
            self._on_thinned(self._apart)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)


def read_more(path: Path, start: int, stop: int) -> list[tuple[int, int, float]]:
    """Returns (row, slot, value) of rows `start` to `stop` (exclusive), in their order."""
    try:
        fd = os.open(more_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        first, last = _first_of(fd, start), _first_of(fd, stop)
        data = os.pread(fd, ENTRY.size * (last - first), ENTRY.size * first)
    finally:
        os.close(fd)
    whole = len(data) - len(data) % ENTRY.size
    return list(ENTRY.iter_unpack(data[:whole]))


def more_chunks(path: Path, stop: int) -> Iterator[np.ndarray]:
    """Yields the entries of the rows before `stop` as arrays of `ENTRY_DTYPE`, bounded in size."""
    try:
        fd = os.open(more_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        last = _first_of(fd, stop)
        for first in range(0, last, ENTRIES_AT_ONCE):
            count = min(ENTRIES_AT_ONCE, last - first)
            data = os.pread(fd, ENTRY.size * count, ENTRY.size * first)
            yield np.frombuffer(data, ENTRY_DTYPE, count=len(data) // ENTRY.size)
    finally:
        os.close(fd)


def _first_of(fd: int, row: int) -> int:
    """The number of the first entry of `row` or a later one."""
    low, high = 0, os.fstat(fd).st_size // ENTRY.size
    while low < high:
        middle = (low + high) // 2
        entry = os.pread(fd, ENTRY.size, ENTRY.size * middle)
        if ENTRY.unpack(entry)[0] < row:
            low = middle + 1
        else:
            high = middle
    return low
