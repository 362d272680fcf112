"""A file of JSON lines that says so when it is incomplete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor.storage.files.line_file import LineFile, parse_line, to_line
from supervisor.storage.files.private_files import write_private

_unlink = os.unlink  # workers patch it


class CompleteList:
    """A list of lines whose completeness matters, so that every loss is noted.

    Never raises: a problem is reported once and noted in the file. If even that fails, the file is
    removed, and rewritten from memory as soon as possible.

    Args:
        path: of the file.
        all_lines: returns what the file should hold.
        tell: called with why the list is not complete, once a process.

    Attributes:
        problem: why something is missing, in this process or an earlier one; empty if nothing is.
    """

    def __init__(
        self,
        path: Path,
        all_lines: Callable[[], list[dict[str, Any]]],
        tell: Callable[[str], None] = lambda problem: None,
    ) -> None:
        self.problem = ""
        self._lines = LineFile(path)
        self._all_lines = all_lines
        self._tell = tell
        self._is_lost = False

    def read(self) -> list[dict[str, Any]]:
        """Returns the lines of an earlier process; lines that cannot be read are a problem."""
        try:
            data = self._lines.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._lose(error)
            return []
        parsed = [parse_line(line) for line in data.split(b"\n") if line]
        lines = [line for line in parsed if line is not None]
        noted = next((line["incomplete"] for line in lines if "incomplete" in line), "")
        if noted:
            self.problem = str(noted)
        elif len(lines) < len(parsed):
            self.is_missing("lines of their record are damaged")
        return lines

    def append(self, line: dict[str, Any]) -> None:
        """Appends a line about what is in memory already."""
        if self._is_lost:
            self.rewrite()
            return
        try:
            self._lines.append(to_line(line))
        except OSError as error:
            self._lose(error)

    def rewrite(self) -> None:
        """Writes all lines anew."""
        self._lines.close()
        lines = [*([{"incomplete": self.problem}] if self.problem else []), *self._all_lines()]
        try:
            write_private(self._lines.path, b"".join(to_line(line) + b"\n" for line in lines))
            self._is_lost = False
        except OSError as error:
            self._lose(error)

    def failed(self, error: Exception) -> None:
        """Notes that something the list should hold could not be determined."""
        self.is_missing(f"{type(error).__name__}: {error}")

    def is_missing(self, why: str) -> None:
        """Notes that something is not in the list and never will be."""
        if self.problem:
            return
        self.problem = why
        self.append({"incomplete": why})
        with contextlib.suppress(Exception):  # the disk may be full or gone
            self._tell(why)

    def _lose(self, error: OSError) -> None:
        self._is_lost = True
        self._lines.close()
        with contextlib.suppress(OSError):
            _unlink(self._lines.path)
        self.failed(error)
