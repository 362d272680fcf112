"""The log of an attempt: all its output, or, where that is too much, its beginning and its end."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.files.private_files import make_private, open_private, replace_file

_KEPT = 0.25
"""Share of the limit for the beginning, and again for the end. The rest is cut out when the limit
is reached, so a flood is copied half again at most."""
_LINE = 4096
"""Within so many bytes a cut looks for the end of a line."""
_CHUNK = 1 << 20


class AttemptLog:
    """Appends to a file that stays below `limit` bytes and is whole at any time.

    A line in its middle says how many bytes were left out there.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._file: IO[bytes] | None = None
        self._size = 0
        self._head = 0
        self._mark = b""
        self._left_out = 0
        self.write(b"")

    def write(self, data: bytes) -> None:
        """Appends `data`; what the disk refuses is kept (`KeptWrites`)."""
        KEPT.append(self, data)

    def append(self, data: bytes) -> None:
        """Appends all of `data` or nothing; for `KeptWrites`.

        Raises:
            OSError: the disk refuses.
        """
        if self._file is None:
            make_private(self.path.parent)
            self._file = open_private(self.path, "ab", buffering=0)
            self._size = os.fstat(self._file.fileno()).st_size
        done = 0
        try:
            while done < len(data):
                done += self._file.write(data[done:])
        except OSError:
            with contextlib.suppress(OSError):  # read-only
                os.ftruncate(self._file.fileno(), self._size)
            raise
        self._size += len(data)
        if self._size > self._limit:
            with contextlib.suppress(OSError):  # tried again with the next line
                self._cut()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a disk may refuse late; nothing is buffered here
                file.close()

    def _cut(self) -> None:
        """Replaces the file by its beginning, a line that says what is missing, and its end."""
        kept = int(_KEPT * self._limit)
        staged = self.path.with_name(f".{self.path.name}.staged")
        with open(self.path, "rb") as old, open_private(staged, "wb") as new:
            head = self._head or _line_end(old, kept)
            tail = _line_end(old, self._size - kept)
            left_out = self._left_out + tail - head - len(self._mark)
            mark = f"[supervisor: {left_out} bytes of output were left out here]\n".encode()
            _copy(old, new, 0, head)
            new.write(mark)
            _copy(old, new, tail, self._size)
        replace_file(staged, self.path)
        self.close()
        self._file = open_private(self.path, "ab", buffering=0)
        self._size += head + len(mark) - tail
        self._head, self._mark, self._left_out = head, mark, left_out


def _line_end(file: IO[bytes], place: int) -> int:
    """Returns the end of the line at `place`, or `place` where lines are long."""
    file.seek(place)
    return place + file.read(_LINE).find(b"\n") + 1


def _copy(old: IO[bytes], new: IO[bytes], start: int, stop: int) -> None:
    old.seek(start)
    while start < stop:
        data = old.read(min(_CHUNK, stop - start))
        if not data:
            return
        new.write(data)
        start += len(data)
