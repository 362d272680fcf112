"""Files that the script writes by `open`: a replay writes them again, and they must be the same.

Sizes of the script's own files when it first opened them for appending.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import xxhash

from supervisor.errors import ReplayError
from supervisor.storage.files.private_files import own_os_open, write_json
from supervisor.storage.run.file_names import absolute
from supervisor.storage.script_files.kept_versions import COPIED_BYTES
from supervisor.storage.script_files.set_aside import SetAside
from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader

FILES = 2_000
"""The newest that are compared; their checksums are part of each checkpoint."""
_PIECE = 1 << 20


@dataclass
class _Written:
    file: weakref.ref[IO[Any]]
    size: int = 0
    checksum: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)

    def flush(self) -> None:
        file = self.file()
        if file is not None and not file.closed:
            file.flush()

    def read_on(self, path: str) -> None:
        """Takes in what was written since the last time.

        Raises:
            OSError: the file is gone.
        """
        size = os.path.getsize(path)
        if size < self.size:
            self.size, self.checksum = 0, xxhash.xxh3_64()
        with _opened(path, os.O_RDONLY) as descriptor:
            while self.size < size:
                piece = os.pread(descriptor, min(_PIECE, size - self.size), self.size)
                if not piece:
                    break
                self.checksum.update(piece)
                self.size += len(piece)


class WrittenFiles:
    """Checksums of the files that the script has written, at each checkpoint and on arrival.

    Args:
        aside: has the files of the recorded run.
    """

    def __init__(self, aside: SetAside) -> None:
        self._aside = aside
        self._files: dict[str, _Written] = {}

    def opened(self, path: str, file: IO[Any]) -> None:
        """The script has opened a file for writing or appending, live or in a replay."""
        name = absolute(path)
        self._files.pop(name, None)
        self._files[name] = _Written(weakref.ref(file))
        if len(self._files) > FILES:
            del self._files[next(iter(self._files))]

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def training_begins(self) -> None:
        """Called before the first forward or update: what was written as a whole before is the
        script's preparation, and may be another in each process."""
        for name, written in list(self._files.items()):
            file = written.file()
            if file is None or file.closed:
                del self._files[name]

    def checksums(self) -> dict[str, list[Any]]:
        """Returns path → size and checksum. Called at a checkpoint: what waits in the buffers of
        open files is written out first."""
        found: dict[str, list[Any]] = {}
        for name, written in self._files.items():
            with contextlib.suppress(OSError, ValueError):  # deleted, or closed by a thread
                written.flush()
                if os.path.getsize(name) <= COPIED_BYTES:
                    written.read_on(name)
                    found[name] = [written.size, written.checksum.hexdigest()]
        return found

    def put_back(
        self, saved: Mapping[str, list[Any]], kept: Mapping[str, str] | None = None
    ) -> set[str]:
        """Gives files that a replay has written otherwise what they held at the checkpoint.

        Called at the target, while the files of the recorded run stand aside.

        Args:
            saved: `checksums` of the checkpoint.
            kept: path → where the content is of a file that was replaced or renamed since.

        Returns:
            Those that are as they were.
        """
        now = self.checksums()
        kept = kept or {}
        as_before = set()
        for name in now.keys() & saved.keys():
            old = self._aside.stored.get(name), kept.get(name)
            if now[name] == saved[name] or self._put_back(name, saved[name], old):
                as_before.add(name)
        for name in saved.keys() - self._files.keys():  # a forward wrote it that was left out
            old = self._aside.stored.get(name), kept.get(name)
            if not os.path.lexists(name) and self._put_back(name, saved[name], old):
                as_before.add(name)
        for written in self._files.values():  # which hold from here on what they did not
            written.size, written.checksum = 0, xxhash.xxh3_64()
        return as_before

    def differing(self, saved: Mapping[str, list[Any]], as_before: Collection[str]) -> list[str]:
        """Returns what this replay has written that is not as it was; called when all is put back.

        Args:
            saved: `checksums` of the checkpoint.
            as_before: what is known to be as it was.
        """
        found = []
        for name in sorted((saved.keys() & self._files.keys()) - set(as_before)):
            size, checksum = saved[name]
            try:
                content = _beginning(name, size + 1)
            except OSError:
                content = b""
            if [len(content), xxhash.xxh3_64_hexdigest(content)] != [size, checksum]:
                found.append(name)
        return found

    def _put_back(self, name: str, then: list[Any], places: Iterable[str | None]) -> bool:
        """Writes what a file of the recorded run begins with, if that is what it held."""
        for old in filter(None, places):
            with contextlib.suppress(OSError):
                content = _beginning(old, int(then[0]))
                if [len(content), xxhash.xxh3_64_hexdigest(content)] == then:
                    self._write(name, content)
                    return _beginning(name, len(content) + 1) == content
        return False

    def _write(self, name: str, content: bytes) -> None:
        known = self._files.get(name)
        file = None if known is None else known.file()
        if file is None or file.closed:
            with _opened(name, os.O_WRONLY | os.O_CREAT) as descriptor:
                _replace(descriptor, content)
            return
        _replace(file.fileno(), content)
        with contextlib.suppress(OSError, ValueError):
            file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = own_os_open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _beginning(path: str, size: int) -> bytes:
    found = b""
    with _opened(path, os.O_RDONLY) as descriptor:
        while len(found) < size and (piece := os.pread(descriptor, _PIECE, len(found))):
            found += piece
    return found[:size]


def _replace(descriptor: int, content: bytes) -> None:
    """Replaces what is in a file, of which the script goes on with the end."""
    os.ftruncate(
        descriptor, 0
    )  # first, because one that was opened for appending writes at its end
    os.lseek(descriptor, 0, os.SEEK_SET)
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


_SIZE = struct.Struct("<q")


class FileSizes:
    """Cuts a file that the script appends to back to where it was, so that lines which are written
    again are not there twice.

    Sizes are noted on the replay log, for a fast-forward, and in a file of the run directory, for
    an attempt that begins anew because there was no checkpoint yet.

    Attributes:
        source: the recorded replay log while a fast-forward runs.
    """

    def __init__(
        self,
        replay_log: ReplayLogWriter,
        noted: Path,
        *,
        begins_again: bool,
        source: ReplayLogReader | None = None,
    ) -> None:
        """`begins_again`: a later attempt that starts from nothing."""
        self.source = source
        self._replay_log = replay_log
        self._noted = noted
        self._begins_again = begins_again
        self._opened: set[str] = set()
        self._sizes: dict[str, int] = json.loads(noted.read_text()) if noted.exists() else {}

    def opened(self, path: str | bytes, *, replaying: bool) -> None:
        """Called just before the script opens `path` for appending.

        Raises:
            OSError: the size cannot be noted, or the file not be cut.
        """
        name = os.path.abspath(os.fsdecode(path))
        size = os.path.getsize(name) if os.path.exists(name) else 0
        if replaying and self.source is not None:
            try:
                recorded = _SIZE.unpack(self.source.take(EntryKind.FILE_SIZE))[0]
            except ReplayError:
                return  # the comparison of the step finds it and says so
            _cut(name, size, recorded)
            return
        if name not in self._sizes:
            self._sizes[name] = size
            write_json(self._noted, self._sizes)
        elif self._begins_again and name not in self._opened:
            _cut(name, size, self._sizes[name])
            size = min(size, self._sizes[name])
        self._opened.add(name)
        self._replay_log.append(EntryKind.FILE_SIZE, _SIZE.pack(size))


def _cut(path: str, size: int, recorded: int) -> None:
    if size > recorded:
        os.truncate(path, recorded)
