"""The file of what a script has drawn from outside: `RUN/tape/rank_<r>.outside`."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import xxhash

from supervisor.storage.files.private_files import make_private, own_os_open, own_replace

_HEAD = struct.Struct("<BII")
SITE, DRAW, TIMES, NUMBERS = 0, 1, 2, 3
"""Entries: a place that draws; what one draw gave; clock readings of a place (differences); numbers
of processes and descriptors, as recorded and as they were in the attempt that went on from here."""
BUDGET = 64 << 20
"""Bytes; a draw takes some 20, a clock reading 3 to 5. Three clock readings a step are 6 million
steps. The index that a resume keeps in memory has 8 bytes for each draw."""
_PIECE = 1 << 20


class DrawsWriter:
    """Appends; each entry is with the system at once, so that a killed process leaves it.

    Args:
        path: of the file; what it holds beyond `keep` bytes of `before` goes.
        before: the file of the run so far, open for reading.
    """

    def __init__(self, path: Path, *, before: int | None = None, keep: int = 0) -> None:
        make_private(path.parent)
        self.size, self._digest = 0, xxhash.xxh3_64()
        anew = path.with_suffix(".outside_anew")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = own_os_open(anew, flags, 0o600)
        while before is not None and self.size < keep:
            self._write(os.pread(before, min(_PIECE, keep - self.size), self.size) or b"?")
        own_replace(anew, path)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    @property
    def is_full(self) -> bool:
        return self.size >= BUDGET

    def append(self, kind: int, site: int, data: bytes) -> None:
        """Raises OSError: the disk refuses."""
        self._write(_HEAD.pack(kind, site, len(data)) + data)

    def append_times(self, site: int, times: array[int]) -> None:
        """Raises OSError: the disk refuses."""
        steps = array("q", times)
        for n in range(len(steps) - 1, 0, -1):
            steps[n] -= steps[n - 1]
        self.append(TIMES, site, zlib.compress(steps.tobytes(), 1))

    def sync(self) -> None:
        with contextlib.suppress(OSError):  # then a resume may find it short, and says so
            os.fsync(self._descriptor)

    def _write(self, data: bytes) -> None:
        if os.write(self._descriptor, data) != len(data):
            raise OSError("the disk is full")
        self._digest.update(data)
        self.size += len(data)


class DrawsReader:
    """Reads the file that earlier attempts have left, whatever becomes of its name."""

    def __init__(self, path: Path) -> None:
        self.descriptor = own_os_open(path, os.O_RDONLY | os.O_CLOEXEC)

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Yields kind, number of the site and place of each whole entry."""
        size, place, known = os.fstat(self.descriptor).st_size, 0, 0
        while place + _HEAD.size <= size:
            kind, site, length = _HEAD.unpack(os.pread(self.descriptor, _HEAD.size, place))
            if place + _HEAD.size + length > size or site > known or kind > NUMBERS:
                return
            known += kind == SITE
            yield kind, site, place
            place += _HEAD.size + length

    def data(self, place: int) -> bytes:
        """What an entry holds."""
        _, _, length = _HEAD.unpack(os.pread(self.descriptor, _HEAD.size, place))
        return os.pread(self.descriptor, length, place + _HEAD.size)

    def times(self, place: int) -> array[int]:
        """The clock readings of an entry, in nanoseconds."""
        times = array("q", zlib.decompress(self.data(place)))
        for n in range(1, len(times)):
            times[n] += times[n - 1]
        return times

    def digest(self, size: int) -> str:
        """Of its first `size` bytes, or of all if there are not so many."""
        found, done = xxhash.xxh3_64(), 0
        while piece := os.pread(self.descriptor, min(_PIECE, size - done), done):
            found.update(piece)
            done += len(piece)
        return found.hexdigest()
