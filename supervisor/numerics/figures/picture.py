"""Writes pictures as files that only their owner can read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from supervisor.errors import UsageError
from supervisor.storage.files.private_files import write_private

FORMATS = ("png", "svg", "pdf")
DPI = 130


def picture_bytes(picture: Any, path: Path) -> bytes:
    """Returns the matplotlib figure in the format of the ending of `path` (none: png).

    Raises:
        UsageError: the ending is none of `FORMATS`.
    """
    ending = path.suffix.lower().lstrip(".") or "png"
    if ending not in FORMATS:
        raise UsageError(f"{path}: no picture format '{ending}': end it in .{', .'.join(FORMATS)}")
    buffer = io.BytesIO()
    picture.savefig(buffer, format=ending, dpi=DPI)
    return buffer.getvalue()


def write_picture(path: Path, data: bytes) -> Path:
    """Writes `data` and returns the path.

    Raises:
        UsageError: the place cannot be written.
    """
    try:
        write_private(path, data)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}): give another place"
        ) from error
    return path
