"""Hidden folders among the checkpoints: being written, being removed, or damaged.

Their names say which process made them, so that left-overs of a dead one are recognised.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from pathlib import Path

from supervisor.storage.files.file_system import FileSystem

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
