"""What commands print: one JSON document, or a plain table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from supervisor.records import plain

SHORTEST = 12
"""Columns that a text keeps when it is shortened."""


def print_json(value: Any) -> None:
    """Prints `value` (records included) as the one document on standard output.

    NaN and infinities, which JSON does not have, become the strings "nan", "inf" and "-inf".
    """
    print(json.dumps(_strict(plain(value)), indent=2, allow_nan=False))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None
) -> None:
    """Prints left-aligned columns, as wide as needed; the last one is not padded.

    Where they are wider than `width`, the beginnings of the last one's texts are left out, and
    where that is not enough, those of the first one's.
    """
    cells = [list(headings), *([printable(str(cell)) for cell in row] for row in rows)]
    if width is not None:
        _fit(cells, width, -1)
        _fit(cells, width, 0)
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([*padded[:-1], row[-1]]).rstrip())


def _fit(cells: list[list[str]], width: int, column: int) -> None:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = max(SHORTEST, widths[column] - max(0, sum(widths) + 2 * (len(widths) - 1) - width))
    for row in cells[1:]:
        if len(row[column]) > room:
            row[column] = f"…{row[column][1 - room :]}"


def printable(text: str) -> str:
    """Returns `text` on one line, with what would steer a terminal written out (``\\x1b``)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def byte_size(count: int) -> str:
    """Returns a size as people read it: ``0 B``, ``12.3 MiB``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024.0 and len(units) > 1:
        size /= 1024.0
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def time_span(seconds: float) -> str:
    """Returns a time as people say it: ``42 s``, ``7 min 5 s``, ``3 h 12 min``, ``2 d 5 h``."""
    whole = max(0, int(seconds)) if seconds < 1e12 else 0
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
