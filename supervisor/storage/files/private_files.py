"""Files that only their owner can read, written completely or not at all.

Python's functions for files, as they were before a worker patches them.

The patches follow the script's files. What the supervisor itself opens, renames, removes and makes
goes past them, through these.

Memory that the processes of one machine share, in a file. Turns refusals of the operating system
into errors that tell the user what to do.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from supervisor.errors import CheckpointError
from supervisor.records import plain

own_open, own_os_open = open, os.open
own_rename, own_replace, own_link = os.rename, os.replace, os.link
own_unlink, own_mkdir = os.unlink, os.mkdir


_REPLACES_NOTHING = (errno.EEXIST, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What some file systems in user space answer to a rename over an existing name."""


def open_private(path: Path, mode: str, buffering: int = -1) -> IO[Any]:
    """Opens `path` like `open`, but a file that it creates has mode 0600.

    Raises:
        OSError: also when `path` is a symbolic link, which is not followed.
    """
    return own_open(
        path,
        mode,
        buffering,
        opener=lambda name, flags: own_os_open(name, flags | os.O_NOFOLLOW, 0o600),
    )


def make_private(folder: Path) -> Path:
    """Creates `folder` and those of its parents that are missing, each with mode 0700.

    Raises:
        OSError: it cannot be made, or a file has its name.
    """
    missing = [folder, *folder.parents]
    missing = missing[: next((n for n, path in enumerate(missing) if path.is_dir()), len(missing))]
    for path in reversed(missing):
        try:
            own_mkdir(path, 0o700)
        except FileExistsError:
            if not path.is_dir():
                raise
    return folder


def write_private(path: Path, data: bytes | str, *, durable: bool = False) -> None:
    """Replaces `path` by `data` atomically; with `durable` it is on disk when this returns.

    Raises:
        OSError: the folder is missing, read-only or full; `path` is as it was.
    """
    make_private(path.parent)
    staged = path.with_name(f".{path.name}.{os.getpid()}.staged")
    text = data.encode() if isinstance(data, str) else data
    try:
        with open_private(staged, "wb") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        replace_file(staged, path)
    except OSError:
        with contextlib.suppress(OSError):
            own_unlink(staged)
        raise


def replace_file(staged: Path, path: Path) -> None:
    """Renames `staged` to `path`, in two steps where the file system replaces no names.

    Raises:
        OSError: it refuses; one of the two is there.
    """
    try:
        own_replace(staged, path)
    except OSError as error:
        if error.errno not in _REPLACES_NOTHING or not path.is_file():
            raise
        own_unlink(path)
        own_rename(staged, path)


def replaces_names(folder: Path) -> bool:
    """Whether the file system of `folder` renames over an existing name, as far as it can be
    tried."""
    names = [folder / f".probe.{os.getpid()}.{number}" for number in (1, 2)]
    try:
        for name in names:
            name.touch(0o600)
        own_replace(*names)
    except OSError as error:
        return error.errno not in _REPLACES_NOTHING
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                own_unlink(name)
    return True


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Writes `value` (records included) as indented JSON; NaN and infinities as such."""
    write_private(path, json.dumps(plain(value), indent=2) + "\n", durable=durable)


def map_shared(path: Path, size: int) -> mmap.mmap:
    """Maps a file of at least `size` bytes, made with zeros by the first who asks.

    Raises:
        OSError: it cannot be created or mapped.
    """
    make_private(path.parent)
    descriptor = own_os_open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        reserve(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def reserve(descriptor: int, size: int) -> None:
    """Grows a file to at least `size` bytes that have room: a store into a mapped page for which
    the disk has none would kill the process (SIGBUS).

    Raises:
        OSError: the disk refuses.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        held = os.fstat(descriptor).st_size
        if held < size:
            os.pwrite(descriptor, bytes(size - held), held)


@contextlib.contextmanager
def told_refusals(where: Path) -> Iterator[None]:
    """Turns an OSError within it into a `CheckpointError` that names `where`."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise CheckpointError(
            f"{where}: {what}: see that the disk has room, and may be read and written; "
            "older checkpoints are untouched"
        ) from error
