"""What the other ranks' records say: files and folders that they see to themselves."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from supervisor.storage.files.line_file import parse_line

_FILES = ("made", "touched", "changed", "open_in_c")


@dataclass(frozen=True, slots=True)
class OtherRanks:
    """As far as their records can be read.

    Attributes:
        files: whose writer is another rank.
        folders: that another rank has made.
        of_lower_ranks: those of them that a rank of a lower number has made, which sees to all in
            them whose writer nobody knows.
    """

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    of_lower_ranks: set[str] = field(default_factory=set)


def read_other_ranks(folder: Path, own: int) -> OtherRanks:
    """Returns what other ranks have written; nothing where one process trains alone.

    Args:
        folder: with the record of each rank.
        own: the asking rank.
    """
    found = OtherRanks()
    for path in folder.glob("rank_*.jsonl"):
        number = path.stem.removeprefix("rank_")
        if number.isdecimal() and int(number) != own:
            with contextlib.suppress(OSError):
                for line in filter(None, map(parse_line, path.read_bytes().split(b"\n"))):
                    made = _paths(line, "folder")
                    found.files.update(_paths(line, *_FILES))
                    found.folders.update(made)
                    found.of_lower_ranks.update(made if int(number) < own else ())
    return found


def _paths(line: dict[str, object], *names: str) -> list[str]:
    return [value for value in map(line.get, names) if is_path(value)]


def is_path(value: object) -> TypeGuard[str]:
    """Whether a field of a record is the absolute path of a file."""
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value
