"""A log as it lies on disk: opened, unpacked, line by line, and what of it had to be left out."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.errors import UsageError

HEAD = 1 << 16
"""Bytes by which a format is recognised."""

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""What Windows' PowerShell writes when a log is redirected into a file."""

_CUT = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)

Row = tuple[int, Mapping[str, Any]]
"""Its line (or record, entry, step), and its values by the names of the log's own columns."""


@dataclass(slots=True)
class Remarks:
    """What a reader has to say of a log, each thing once.

    Attributes:
        said: sentences.
        broken: lines that could not be read.
        first_broken: the first of them, and why it could not be read.
        unit: what a log's rows are counted in.
        other_rows: rows that hold nothing of a training step: validation, summaries.
        texts: columns in which words stood.
    """

    said: list[str] = field(default_factory=list)
    broken: int = 0
    first_broken: tuple[int, str] | None = None
    unit: str = "line"
    other_rows: int = 0
    texts: dict[str, None] = field(default_factory=dict)

    def broken_line(self, number: int, why: str) -> None:
        self.broken += 1
        self.first_broken = min(self.first_broken or (number, why), (number, why))

    def sentences(self) -> list[str]:
        found = list(self.said)
        if self.first_broken:
            number, why = self.first_broken
            count = f"{self.broken:,} broken {self.unit}{'s' if self.broken > 1 else ''}"
            found.append(f"left out {count}: {self.unit} {number}: {why}")
        if self.texts:
            found.append(f"left out the text in: {', '.join(self.texts)}")
        if self.other_rows:
            rows = f"{self.other_rows:,} row{'s' if self.other_rows > 1 else ''}"
            found.append(f"left out {rows} without a training loss (validation, rates, summaries)")
        return found


_Bytes = gzip.GzipFile | lzma.LZMAFile | io.BufferedReader


class LogFile:
    """One file, plain or packed by gzip or xz.

    Raises:
        UsageError: it is not there, or may not be read.
    """

    def __init__(self, path: Path, remarks: Remarks) -> None:
        if not path.is_file():
            raise UsageError(f"{path}: no such file: give a log, or the directory of a run")
        self.path = path
        self.remarks = remarks
        self.head = b"".join(self.pieces(HEAD, limit=HEAD))

    def refuse_binary(self) -> None:
        if b"\0" in self.head and not self.head.startswith(UTF16):
            raise UsageError(f"{self.path}: is no text, and no log that is known: give a log")

    def pieces(self, size: int = 1 << 20, limit: int | None = None) -> Iterator[bytes]:
        """Yields its unpacked bytes, up to `limit`; data that end early end here, too."""
        read = 0
        try:
            with self._open() as file:
                while (limit is None or read < limit) and (piece := file.read1(size)):
                    read += len(piece)
                    yield piece
        except _CUT as error:
            if limit is None:
                self.remarks.said.append(f"its packed data break off ({error})")
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be read ({error}): check its permissions"
            ) from error

    def lines(self) -> Iterator[str]:
        """Yields its lines without their ends; those that a progress bar overwrites, too."""
        encoding = "utf-16" if self.head.startswith(UTF16) else "utf-8-sig"
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        rest = ""
        for piece in self.pieces():
            rest += decoder.decode(piece)
            *whole, rest = rest.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            yield from whole
        if rest:
            yield rest

    def first_lines(self) -> list[str]:
        """The whole lines of its head."""
        encoding = "utf-16" if self.head.startswith(UTF16) else "utf-8-sig"
        lines = self.head.decode(encoding, errors="replace").splitlines()
        return lines if len(self.head) < HEAD else lines[:-1]

    def _open(self) -> _Bytes:
        with open(self.path, "rb") as file:
            magic = file.read(len(XZ))
        if magic.startswith(GZIP):
            return gzip.open(self.path)
        if magic == XZ:
            return lzma.open(self.path)
        return open(self.path, "rb")


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
