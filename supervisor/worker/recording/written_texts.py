"""Logs and other texts: a replay writes them again, and they must come out the same."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import xxhash

from supervisor.storage.run.set_aside import SetAside

_open = os.open  # before it is patched
FILES = 2_000
"""The newest that are compared; their checksums are part of each checkpoint."""
_PIECE = 1 << 20


@dataclass
class _Text:
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


class WrittenTexts:
    """Checksums of the texts that the script has written, at each checkpoint and on arrival.

    Args:
        aside: has the files of the recorded run.
    """

    def __init__(self, aside: SetAside) -> None:
        self._aside = aside
        self._texts: dict[str, _Text] = {}

    def opened(self, path: str, file: IO[Any]) -> None:
        """The script has opened a text for writing or appending, live or in a replay."""
        name = os.path.abspath(path)
        self._texts.pop(name, None)
        self._texts[name] = _Text(weakref.ref(file))
        if len(self._texts) > FILES:
            del self._texts[next(iter(self._texts))]

    def checksums(self) -> dict[str, list[Any]]:
        """Returns path → size and checksum. Called at a checkpoint: what waits in the buffers of
        open files is written out first."""
        found: dict[str, list[Any]] = {}
        for name, text in self._texts.items():
            with contextlib.suppress(OSError, ValueError):  # deleted, or closed by a thread
                text.flush()
                text.read_on(name)
                found[name] = [text.size, text.checksum.hexdigest()]
        return found

    def put_back(self, saved: Mapping[str, list[Any]]) -> list[str]:
        """Gives texts that a replay has written otherwise what they held at the checkpoint.

        Called at the target, while the files of the recorded run stand aside.

        Args:
            saved: `checksums` of the checkpoint.

        Returns:
            Those that are not as they were.
        """
        now = self.checksums()
        lost = []
        for name, then in saved.items():
            if name not in now or now[name] == then:
                continue  # what is not there is a matter of `ReplayedFiles`
            old = self._aside.stored.get(name)
            try:
                content = b"" if old is None else _beginning(old, int(then[0]))
                if [len(content), xxhash.xxh3_64_hexdigest(content)] != then:
                    lost.append(name)
                    continue
                self._write(name, content)
            except OSError:
                lost.append(name)
        return lost

    def _write(self, name: str, content: bytes) -> None:
        file = self._texts[name].file()
        if file is None or file.closed:
            with _opened(name, os.O_WRONLY) as descriptor:
                _replace(descriptor, content)
            return
        _replace(file.fileno(), content)
        with contextlib.suppress(OSError, ValueError):
            file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = _open(path, flags)
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
    os.lseek(descriptor, 0, os.SEEK_SET)
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.ftruncate(descriptor, len(content))
