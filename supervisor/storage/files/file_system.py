"""The file operations of checkpoints, in one place so that tests can make each one fail."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import xxhash

from supervisor.storage.files.originals import own_mkdir, own_open, own_os_open, own_unlink
from supervisor.storage.files.private_files import open_private, replace_file

_BLOCK_BYTES = 4 * 1024 * 1024


class FileSystem:
    """The real disk. Every method raises OSError when the operating system refuses.

    Tests subclass it to kill the process, or fill the disk, at the k-th operation.
    """

    def make_folder(self, path: Path) -> None:
        """Creates a folder that does not exist yet, mode 0700; its parent must exist."""
        own_mkdir(path, 0o700)

    def write(self, path: Path, data: bytes) -> None:
        with open_private(path, "wb") as file:
            file.write(data)

    def read(self, path: Path) -> bytes:
        with own_open(path, "rb") as file:
            return bytes(file.read())

    def checksum(self, path: Path, *, fresh: bool = False) -> str:
        """Returns the file's xxh3_128 in hexadecimal.

        With `fresh` the kernel's cached copy is dropped first, so that the disk itself is read.
        """
        digest = xxhash.xxh3_128()
        with own_open(path, "rb", buffering=0) as file:
            if fresh:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        return str(digest.hexdigest())

    def sync_file(self, path: Path) -> None:
        """Flushes the file's content to disk."""
        _sync(path, os.O_RDONLY)

    def sync_folder(self, path: Path) -> None:
        """Flushes the names in the folder to disk, not the content of its files."""
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def replace(self, old: Path, new: Path) -> None:
        """Renames atomically; `new` may exist if it is a file or an empty folder."""
        replace_file(old, new)

    def remove_file(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            own_unlink(path)

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Removes a folder and all in it, file by file, without following links."""
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                self.remove_tree(entry)
            else:
                self.remove_file(entry)
        self.remove_folder(path)

    def names(self, path: Path) -> list[str]:
        """Returns the sorted names in a folder; none if the folder does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def age_s(self, path: Path) -> float:
        """Returns the seconds since something in the folder was last made, renamed or removed."""
        return time.time() - path.stat().st_mtime

    def free_bytes(self, path: Path) -> int:
        """Returns how many bytes this user can still write to the disk of `path`."""
        return shutil.disk_usage(path).free


def _sync(path: Path, flags: int) -> None:
    fd = own_os_open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
