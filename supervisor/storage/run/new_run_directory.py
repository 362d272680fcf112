"""A folder for a run that was given none."""

from __future__ import annotations

import time
from pathlib import Path

from supervisor.errors import UsageError


def new_run_directory(name: str, folder: Path = Path("runs")) -> Path:
    """Creates `folder/name-TIME`, with a number behind it if taken: launches never share one.

    Raises:
        UsageError: it cannot be made.
    """
    path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        number, free = 1, path
        while not _made(free):
            number += 1
            free = path.with_name(f"{path.name}-{number}")
        return free
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: give a --run-dir that can be made") from error


def _made(path: Path) -> bool:
    """Creates the folder; False if the name is taken, even by a simultaneous launch."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True
