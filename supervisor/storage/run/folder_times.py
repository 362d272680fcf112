"""When folders were last changed: what rotates its checkpoints may delete the oldest by that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

FOLDERS = 2_000
"""The newest that are looked at."""


def folder_times(folders: Iterable[str]) -> dict[str, int]:
    """Returns path → time in nanoseconds of those that exist.

    Args:
        folders: absolute paths, the newest last.
    """
    found = {}
    for path in list(folders)[-FOLDERS:]:
        with contextlib.suppress(OSError):
            found[path] = os.stat(path).st_mtime_ns
    return found


def put_back_folder_times(times: Mapping[str, int]) -> None:
    """Gives folders the times that they had; called when nothing is moved in them any more."""
    for path, then in times.items():
        with contextlib.suppress(OSError):
            os.utime(path, ns=(os.stat(path).st_atime_ns, then))
