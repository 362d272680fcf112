"""Tables of commands and of results, all drawn by rich."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table

UNLIMITED = 1_000_000
"""Columns of what is no terminal: a table is as wide as it needs to be."""

SHORTEST = 12
"""Columns that a text keeps when it is shortened."""


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0) -> str:
    """Returns left-aligned columns, as wide as needed, one row a line; no `headings`, no head."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=UNLIMITED, color_system=None)
    with console.capture() as capture:
        console.print(build_table(headings, rows, (), ()))
    return "\n".join(" " * indent + line.rstrip() for line in capture.get().splitlines())


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    styles: Sequence[str] = (),
    shortened: Collection[str] = (),
) -> None:
    """Prints a table: on a terminal in its width and in colours, elsewhere as wide as needed.

    Args:
        styles: rich's style of each row, for a terminal.
        shortened: headings of the columns that lose the beginnings of their texts where there is
            no room; the other cells then stay on one line. Without any, cells are wrapped.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if not (console.is_terminal or (shortened and os.environ.get("COLUMNS"))):
        print(table(headings, rows))
        return
    with console.capture() as capture:
        console.print(build_table(headings, rows, styles, shortened))
    print(capture.get(), end="")  # rich would end the process where the reader has gone away


def printable(text: str) -> str:
    """Returns `text` on one line, with what would steer a terminal written out (``\\x1b``)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def build_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    styles: Sequence[str],
    shortened: Collection[str],
) -> Table:
    """Returns the table for rich to draw; arguments as of `print_table`."""
    from rich.table import Table
    from rich.text import Text

    built = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(headings))
    for heading in headings:
        keeps_line = bool(shortened) and heading not in shortened
        built.add_column(Text(heading, "bold"), overflow="fold", no_wrap=keeps_line)
    for number, row in enumerate(rows):
        cells = [printable(str(cell)) for cell in row]
        built.add_row(
            *(
                End(cell) if name in shortened else Text(cell)
                for name, cell in zip(headings or cells, cells, strict=True)
            ),
            style=styles[number] if styles else None,
        )
    return built


@dataclass(frozen=True, slots=True)
class End:
    """A text whose end is what tells it apart, as with paths."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        room = options.max_width
        fits = len(self.text) <= room
        yield Text(self.text if fits else f"…{self.text[1 - room :]}", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(min(SHORTEST, len(self.text)), len(self.text))
