"""Turns refusals of the operating system into errors that tell the user what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from supervisor.errors import CheckpointError


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
