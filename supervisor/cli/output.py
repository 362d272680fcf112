"""What commands print: one JSON document, or a plain table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from supervisor.records import plain


def print_json(value: Any) -> None:
    """Prints `value` (records included) as the one document on standard output.

    NaN and infinities, which JSON does not have, become the strings "nan", "inf" and "-inf".
    """
    print(json.dumps(_strict(plain(value)), indent=2, allow_nan=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints left-aligned columns, as wide as needed; the last one is not padded."""
    cells = [list(headings), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([*padded[:-1], row[-1]]).rstrip())


def printable(text: str) -> str:
    """Returns `text` on one line, with what would steer a terminal written out (``\\x1b``)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
