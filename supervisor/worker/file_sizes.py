"""Sizes of the script's own files when it opened them for appending."""

from __future__ import annotations

import os
import struct

from supervisor.errors import ReplayError
from supervisor.storage.tape import EntryKind, TapeReader, TapeWriter

_SIZE = struct.Struct("<q")


class FileSizes:
    """Live: notes the size on the tape. Replay: cuts the file back to it, so that the lines which
    the replay appends again are not there twice.

    Attributes:
        source: the recorded tape while a fast-forward runs.
    """

    def __init__(self, tape: TapeWriter) -> None:
        self.source: TapeReader | None = None
        self._tape = tape

    def opened(self, path: str | bytes, *, replaying: bool) -> None:
        """Called just before the script opens `path` for appending."""
        try:
            size = os.path.getsize(path)
        except OSError:
            size = 0
        if not replaying or self.source is None:
            self._tape.append(EntryKind.FILE_SIZE, _SIZE.pack(size))
            return
        try:
            recorded = _SIZE.unpack(self.source.take(EntryKind.FILE_SIZE))[0]
        except ReplayError:
            return  # the comparison of the step finds it and says so
        if size > recorded:
            os.truncate(path, recorded)
