"""Figures that all views of a model share: formats, levels, spread, pictures."""

from __future__ import annotations

import enum
import io
import math
from pathlib import Path
from typing import Any

from supervisor.errors import UsageError
from supervisor.storage.files.private_files import write_private


def percent(share: float) -> str:
    """Returns ``0.31 %``, ``12 %``, ``0 %``, ``< 0.01 %``, ``infinite``, or ``–`` for NaN."""
    if math.isnan(share):
        return "–"
    if math.isinf(share):
        return "infinite"
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def figure(value: float) -> str:
    """Returns four digits: ``3.142``, ``1.2e+07``."""
    return f"{value:.4g}"


class Level(str, enum.Enum):
    """Mildest first."""

    OK = "ok"
    WARNING = "warning"
    SEVERE = "severe"


WARNING_ABOVE = 0.01
SEVERE_ABOVE = 0.10
SPREAD_LINE = 1e4
"""Ratio of magnitudes within a sum from which its small addends are lost."""


def level_of(value: float) -> Level:
    """Returns the level of a share or a relative error (0.01 is 1 %); NaN is severe."""
    if math.isnan(value) or value > SEVERE_ABOVE:
        return Level.SEVERE
    return Level.WARNING if value > WARNING_ABOVE else Level.OK


def worse(*levels: Level) -> Level:
    return max(levels, key=list(Level).index)


PICTURE_FORMATS = ("png", "svg", "pdf")
DPI = 130


def picture_bytes(picture: Any, path: Path) -> bytes:
    """Returns the matplotlib figure in the format of the ending of `path` (none: png).

    Raises:
        UsageError: the ending is none of `PICTURE_FORMATS`.
    """
    ending = path.suffix.lower().lstrip(".") or "png"
    if ending not in PICTURE_FORMATS:
        raise UsageError(
            f"{path}: no picture format '{ending}': end it in .{', .'.join(PICTURE_FORMATS)}"
        )
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
