"""The file operations of checkpoints, in one place so that tests can make each one fail.

Hidden folders among the checkpoints: being written, being removed, or damaged.

Their names say which process made them, so that left-overs of a dead one are recognised.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import time
from pathlib import Path

import xxhash

from supervisor.storage.files.private_files import (
    open_private,
    own_mkdir,
    own_open,
    own_os_open,
    own_unlink,
    replace_file,
)

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


STAGED = "staged"
REMOVED = "removed"
DAMAGED = "damaged"

_FOREIGN_HOST_AGE_S = 3600.0
"""Age at which a folder of another host, whose processes cannot be seen, counts as left over."""

_HOST = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname()) or "host"
_NUMBERS = itertools.count()
_NAME = re.compile(r"\.(staged|removed|damaged)-(\d+)-([A-Za-z0-9._]+)-(\d+)-(\d+)-(\d+)")


def aside_path(folder: Path, kind: str, step: int) -> Path:
    """Returns a new path in `folder` that no other process or call returns."""
    owner = f"{_HOST}-{os.getpid()}-{_started(os.getpid())}"
    return folder / f".{kind}-{step:08d}-{owner}-{next(_NUMBERS)}"


def kind_of(name: str) -> str | None:
    """Returns the kind of a name made by `aside_path`, None for any other name."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def is_left_over(file_system: FileSystem, path: Path) -> bool:
    """Returns whether a staged folder's writer is dead."""
    match = _NAME.fullmatch(path.name)
    if not match:
        return False
    host, pid, started = match[3], int(match[4]), int(match[5])
    if host != _HOST:
        return file_system.age_s(path) > _FOREIGN_HOST_AGE_S
    return _started(pid) != started


def _started(pid: int) -> int | None:
    """Returns when a living process began (clock ticks since boot), None if there is none.

    Needed because process numbers are reused, in containers often at once.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = stat[stat.rindex(")") + 2 :].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
