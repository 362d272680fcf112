"""What the disk refuses of our own files: kept in memory, in order, and tried again.

The one place where a refused write of ours ends nothing. A process has one `KEPT`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Protocol

from supervisor.storage.files.json_files import LineFile
from supervisor.storage.files.private_files import open_private, write_private

KEPT_BYTES = 64 << 20
"""In all: the journal of weeks, and less than the copies of a small model's state."""
AGAIN_S = 1.0
"""Between two tries: one costs a microsecond on a full disk, seconds on a network that is gone."""
_WHOLE, _APPENDED = -1, -2


class Appended(Protocol):
    """A file that grows; `append` writes all of `data`, or raises OSError."""

    @property
    def path(self) -> Path: ...

    def append(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWrite:
    """One write: the whole of a file, a line that is appended, or bytes `at` a place."""

    path: Path
    data: bytes
    at: int = _WHOLE
    file: Appended | None = None

    def make(self) -> None:
        """Raises OSError: the disk refuses."""
        if self.at == _WHOLE:
            _replace(self.path, self.data)
        elif self.at == _APPENDED:
            if self.file is not None:
                self.file.append(self.data)
            else:
                with contextlib.closing(LineFile(self.path)) as lines:
                    lines.append(self.data)
        else:
            with open_private(self.path, "r+b") as file:
                file.seek(self.at)
                file.write(self.data)


class KeptWrites:
    """Writes now, or keeps what is refused; any thread may call it, and nothing raises OSError.

    Attributes:
        on_refused: called, outside of all locks, when the disk begins to refuse.
        on_written: called when nothing is kept any more.
    """

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self.on_refused: Callable[[Path, OSError], None] = lambda path, error: None
        self.on_written: Callable[[], None] = lambda: None
        self._limit = limit
        self._kept: dict[Path, deque[KeptWrite]] = {}
        self._bytes = 0
        self._again_at = 0.0
        self._lock = threading.RLock()

    def replace(self, path: Path, data: bytes | str) -> bool:
        """Replaces a file durably; returns whether that is done."""
        self.forget(path)
        text = data.encode() if isinstance(data, str) else data
        return self.add(KeptWrite(path=path, data=text)) and path not in self._kept

    def append(self, file: Appended, data: bytes) -> bool:
        """Appends to a file; returns False if it is lost, because too much is kept already."""
        return self.add(KeptWrite(path=file.path, data=data, at=_APPENDED, file=file))

    def add(self, write: KeptWrite) -> bool:
        """Makes a write after those to the same file that are kept; False if it is lost."""
        refused = None
        with self._lock:
            if write.path not in self._kept:
                try:
                    write.make()
                    return True
                except OSError as error:
                    refused = error
            has_room = self._bytes + len(write.data) <= self._limit
            if has_room:
                is_first = not self._kept
                self._kept.setdefault(write.path, deque()).append(write)
                self._bytes += len(write.data)
        if refused is not None and has_room and is_first:
            self._again_at = time.monotonic() + AGAIN_S
            self.on_refused(write.path, refused)
        else:
            self.try_again()
        return has_room

    def try_again(self, *, now: bool = False) -> bool:
        """Makes what is kept, if it is time for it; returns whether nothing is kept any more."""
        with self._lock:
            if not self._kept:
                return True
            if not now and time.monotonic() < self._again_at:
                return False
            for path, writes in list(self._kept.items()):
                with contextlib.suppress(OSError):
                    while writes:
                        writes[0].make()
                        self._bytes -= len(writes.popleft().data)
                    del self._kept[path]
            self._again_at = time.monotonic() + AGAIN_S
            if self._kept:
                return False
        self.on_written()
        return True

    def kept(self) -> list[KeptWrite]:
        """Returns what is not written yet, in order for each file."""
        with self._lock:
            return [write for writes in self._kept.values() for write in writes]

    def forget(self, path: Path) -> None:
        """Nothing that is kept of a file is to be written any more."""
        with self._lock:
            for write in self._kept.pop(path, ()):
                self._bytes -= len(write.data)

    def forget_all(self) -> None:
        """As `forget`, for all files; those who are told are told of nothing any more."""
        with self._lock:
            for path in list(self._kept):
                self.forget(path)
            self.on_refused, self.on_written = lambda path, error: None, lambda: None


def _replace(path: Path, data: bytes) -> None:
    """Where there is no room for a second file, the old one's own blocks take the new content: this
    is not atomic, so what matters has a copy and a checksum (``run.json``)."""
    try:
        write_private(path, data, durable=True)
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT) or not path.is_file():
            raise
        if len(data) > 512 * path.stat().st_blocks:
            raise
        with open_private(path, "r+b", buffering=0) as file:
            file.write(data)
            file.truncate(len(data))
            os.fsync(file.fileno())


KEPT = KeptWrites()
