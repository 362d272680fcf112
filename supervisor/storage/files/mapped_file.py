"""Memory that the processes of one machine share, in a file."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

from supervisor.storage.files.originals import own_os_open
from supervisor.storage.files.private_files import make_private


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
