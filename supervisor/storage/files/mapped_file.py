"""Memory that the processes of one machine share, in a file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from supervisor.storage.files.private_files import make_private


def map_shared(path: Path, size: int) -> mmap.mmap:
    """Maps a file of at least `size` bytes, made with zeros by the first who asks.

    Raises:
        OSError: it cannot be created or mapped.
    """
    make_private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
