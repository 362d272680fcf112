"""Tables of text: CSV as people, Lightning, pandas and W&B write it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from supervisor.analysis.backtest.log_file import LogFile, Row
from supervisor.errors import UsageError

ROWS_LOOKED_AT = 20
"""By which a table is told from other text with commas."""

SEPARATORS = ",;\t|"


def is_table(file: LogFile) -> bool:
    """Whether it begins with a row of names, and numbers stand below them."""
    lines = [line for line in file.first_lines() if _is_row(line)][: 1 + ROWS_LOOKED_AT]
    if not lines or lines[0].lstrip().startswith(("{", "[")):
        return False
    header, *rows = csv.reader(lines, delimiter=_separator(lines[0]))
    if any(_is_number(name) for name in header):
        return False
    fit = (row for row in rows if len(row) == len(header) > 1)
    return "loss" in map(str.strip, header) or any(any(map(_is_number, row)) for row in fit)


def read_table(file: LogFile) -> Iterator[Row]:
    """Yields its rows; a heading that comes again, as after a restart, is none.

    Raises:
        UsageError: two columns have one name.
    """
    numbers: list[int] = []
    heading = next(line for line in file.first_lines() if _is_row(line))
    rows = csv.reader(_rows(file, numbers), delimiter=_separator(heading))
    header: list[str] = []
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            file.remarks.broken_line(numbers[-1], str(error))
            continue
        if row is None:
            return
        cells = [cell.strip() for cell in row]
        if not header:
            header = _checked(file, cells)
        elif len(cells) > len(header):
            why = f"{len(cells)} cells under {len(header)} columns"
            file.remarks.broken_line(numbers[-1], why)
        elif cells != header:
            pairs = zip(header, cells, strict=False)
            yield numbers[-1], {name: cell for name, cell in pairs if name}


def _rows(file: LogFile, numbers: list[int]) -> Iterator[str]:
    for number, line in enumerate(file.lines(), 1):
        if _is_row(line):
            numbers[:] = [number]
            yield line + "\n"


def _is_row(line: str) -> bool:
    """Not an empty line, nor a comment: stable-baselines3's monitor begins with one."""
    return bool(line.strip()) and not line.startswith("#")


def _separator(line: str) -> str:
    return max(SEPARATORS, key=line.count)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _checked(file: LogFile, header: Sequence[str]) -> list[str]:
    twice = {name for name in header if name and header.count(name) > 1}
    if twice:
        raise UsageError(
            f"{file.path}: line 1: column {sorted(twice)[0]!r} twice: keep one of them"
        )
    return list(header)
