"""Keeps earlier contents of files that the script replaced or deleted."""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.storage.files.private_files import (
    make_private,
    own_link,
    own_open,
    own_os_open,
    own_rename,
    own_unlink,
)

ROOM = 4
"""A replaced file is kept only if so many more of its size fit on the disk."""


COPIED_BYTES = 64 << 20
"""A file that is changed in place is copied up to this size: about 50 ms, once an interval."""


class Loss(enum.Enum):
    """What the script is about to do to a file."""

    NAME = "name"  # deleted, or the name is given to another file
    CONTENT = "content"  # written anew from its start
    PART = "part"  # changed in place: the script reads and overwrites what is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The first replacement or deletion of a file within one interval of `ScriptFiles`.

    Attributes:
        interval: in which it happened.
        made: interval in which that file was made; `BEFORE` if it was there before the run.
        kept: where its old content is; empty if it could not be kept.
        size, mtime_ns: of the old content.
    """

    interval: int
    made: int
    kept: str
    size: int
    mtime_ns: int


class KeptVersions:
    """The folder of such contents. Only files changed in place are copied; for all others the
    folder has to be on the same disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def keep(self, name: str, loss: Loss, interval: int, made: int) -> Iterator[Change]:
        """Keeps what `name` holds, where that is possible, for as long as its `Change` says so.

        Yields:
            The change, before anything is moved: it is to be noted first; and a second time, with
            nothing kept, if that failed. Nothing for what is neither file nor link.
        """
        found = os.lstat(name)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            return
        place = self._place_for(name, found, loss)
        change = Change(
            interval=interval,
            made=made,
            kept=place,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
        )
        yield change
        if place and not _kept(name, place, found, loss):
            yield replace(change, kept="")

    def _place_for(self, name: str, found: os.stat_result, loss: Loss) -> str:
        """Returns a free place; empty if `name` cannot or should not be kept: where its content
        goes, other names that it has must change with it."""
        if loss is Loss.CONTENT and (found.st_nlink > 1 or found.st_uid != os.geteuid()):
            return ""
        if loss is Loss.PART and found.st_size > COPIED_BYTES:
            return ""
        try:
            if not _has_room(name, found.st_size):
                return ""
            make_private(self._folder)
        except OSError:
            return ""
        while True:
            self._count += 1
            place = str(self._folder / str(self._count))
            if not os.path.lexists(place):
                return place

    def change_of(self, line: dict[str, Any], interval: int) -> Change | None:
        """Returns what `change_line` wrote; only own places are believed, None for others."""
        made, kept, size, mtime = (line.get(k) for k in ("before", "kept", "size", "mtime_ns"))
        if not (isinstance(made, int) and isinstance(size, int) and isinstance(mtime, int)):
            return None
        is_ours = isinstance(kept, str) and kept.isdigit()
        place = str(self._folder / str(kept)) if is_ours else ""
        return Change(interval=interval, made=made, kept=place, size=size, mtime_ns=mtime)


def change_line(name: str, change: Change) -> dict[str, Any]:
    """Returns the record's line of a change."""
    return {
        "changed": name,
        "interval": change.interval,
        "before": change.made,
        "kept": os.path.basename(change.kept),
        "size": change.size,
        "mtime_ns": change.mtime_ns,
    }


def _kept(name: str, place: str, found: os.stat_result, loss: Loss) -> bool:
    """Keeps what `name` holds; where its content goes, an empty file of its mode is left there.

    Returns:
        Whether that was possible; a disk without links, and another disk, refuse.
    """
    try:
        if loss is Loss.NAME:
            own_link(name, place, follow_symlinks=False)
            return True
        if loss is Loss.PART:
            copy_private(name, place, found)
            return True
        own_rename(name, place)
    except OSError:
        return False
    with contextlib.suppress(OSError):  # the script's own call will tell
        descriptor = own_os_open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        os.close(descriptor)
    return True


def copy_private(name: str, place: str, found: os.stat_result) -> None:
    """Copies a file to `place`, which is free, with its times.

    Raises:
        OSError: it cannot be read, or the disk refuses.
    """
    descriptor = own_os_open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with own_open(name, "rb") as source, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))


def remove_kept(place: str) -> None:
    """Removes what is kept at `place`, if anything is."""
    if place:
        with contextlib.suppress(OSError):
            own_unlink(place)


def _has_room(path: str, size: int) -> bool:
    disk = os.statvfs(os.path.dirname(path))
    return disk.f_bavail * disk.f_frsize >= ROOM * size
