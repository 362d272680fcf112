"""Sizes of the script's own files when it first opened them for appending."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from supervisor.errors import ReplayError
from supervisor.storage.files.private_files import write_json
from supervisor.storage.steps.tape import EntryKind, TapeWriter
from supervisor.storage.steps.tape_reader import TapeReader

_SIZE = struct.Struct("<q")


class FileSizes:
    """Cuts a file that the script appends to back to where it was, so that lines which are written
    again are not there twice.

    Sizes are noted on the tape, for a fast-forward, and in a file of the run directory, for an
    attempt that begins anew because there was no checkpoint yet.

    Attributes:
        source: the recorded tape while a fast-forward runs.
    """

    def __init__(
        self,
        tape: TapeWriter,
        noted: Path,
        *,
        begins_again: bool,
        source: TapeReader | None = None,
    ) -> None:
        """`begins_again`: a later attempt that starts from nothing."""
        self.source = source
        self._tape = tape
        self._noted = noted
        self._begins_again = begins_again
        self._opened: set[str] = set()
        self._sizes: dict[str, int] = json.loads(noted.read_text()) if noted.exists() else {}

    def opened(self, path: str | bytes, *, replaying: bool) -> None:
        """Called just before the script opens `path` for appending.

        Raises:
            OSError: the size cannot be noted, or the file not be cut.
        """
        name = os.path.abspath(os.fsdecode(path))
        size = os.path.getsize(name) if os.path.exists(name) else 0
        if replaying and self.source is not None:
            try:
                recorded = _SIZE.unpack(self.source.take(EntryKind.FILE_SIZE))[0]
            except ReplayError:
                return  # the comparison of the step finds it and says so
            _cut(name, size, recorded)
            return
        if name not in self._sizes:
            self._sizes[name] = size
            write_json(self._noted, self._sizes)
        elif self._begins_again and name not in self._opened:
            _cut(name, size, self._sizes[name])
            size = min(size, self._sizes[name])
        self._opened.add(name)
        self._tape.append(EntryKind.FILE_SIZE, _SIZE.pack(size))


def _cut(path: str, size: int, recorded: int) -> None:
    if size > recorded:
        os.truncate(path, recorded)
