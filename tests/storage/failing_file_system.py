"""A disk that ends the process, or refuses, at the k-th operation."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from supervisor.storage.files.file_system import FileSystem


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it, and nothing is done after it."""


class FastDisk(FileSystem):
    """Writes without waiting for the disk, which tests of logic need not."""

    def sync_file(self, path: Path) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class FailingFileSystem(FileSystem):
    """Counts operations; from number `fail_at` on (0-based) it fails.

    With `error` None the process is dead from then on: every later operation raises `Killed` too,
    since a dead process cleans nothing up. A write that is killed or refused leaves half its data.
    With an errno, operation `fail_at` raises OSError, and later ones work again.
    """

    def __init__(self, fail_at: int = 1_000_000, error: int | None = None) -> None:
        self.operations = 0
        self.fail_at = fail_at
        self.error = error
        self.free: int | None = None

    def _count(self) -> bool:
        number = self.operations
        self.operations += 1
        if self.error is None:
            return number >= self.fail_at
        return number == self.fail_at

    def _fail(self, path: Path) -> None:
        if self.error is None:
            raise Killed(path)
        raise OSError(self.error, errno.errorcode[self.error], str(path))

    def tick(self, path: Path) -> None:
        if self._count():
            self._fail(path)

    def make_folder(self, path: Path) -> None:
        self.tick(path)
        super().make_folder(path)

    def write(self, path: Path, data: bytes) -> None:
        if self._count():
            if self.error is not None or self.operations == self.fail_at + 1:
                super().write(path, data[: len(data) // 2])
            self._fail(path)
        super().write(path, data)

    def read(self, path: Path) -> bytes:
        self.tick(path)
        return super().read(path)

    def checksum(self, path: Path, *, fresh: bool = False) -> str:
        self.tick(path)
        return super().checksum(path, fresh=fresh)

    def sync_file(self, path: Path) -> None:
        self.tick(path)

    def sync_folder(self, path: Path) -> None:
        self.tick(path)

    def replace(self, old: Path, new: Path) -> None:
        self.tick(new)
        super().replace(old, new)

    def remove_file(self, path: Path) -> None:
        self.tick(path)
        super().remove_file(path)

    def remove_folder(self, path: Path) -> None:
        self.tick(path)
        super().remove_folder(path)

    def names(self, path: Path) -> list[str]:
        self.tick(path)
        return super().names(path)

    def size(self, path: Path) -> int:
        self.tick(path)
        return super().size(path)

    def free_bytes(self, path: Path) -> int:
        self.tick(path)
        return super().free_bytes(path) if self.free is None else self.free


class SmallDisk(FastDisk):
    """A disk of `capacity` bytes, which holds nothing but one folder."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder = folder
        self.capacity = capacity

    def free_bytes(self, path: Path) -> int:
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        states = [file for file in files if file.name != "manifest.json"]
        return self.capacity - sum(file.stat().st_size for file in states)


def writer(disk: Any, text: str, files: int = 2) -> Any:
    """Returns a `write` for `CheckpointRing.save` whose files count as operations of `disk`."""

    def write(folder: Path) -> None:
        for number in range(files):
            disk.write(folder / f"part_{number}.pt", f"{text} {number} ".encode() * 20)

    return write
