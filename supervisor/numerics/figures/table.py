"""Plain text tables, and figures as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns left-aligned columns, as wide as needed, one row a line."""
    cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
    return "\n".join(lines)


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
