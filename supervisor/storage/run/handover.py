"""Memory of a parent's in which its ranks leave what must reach it though the disk refuses it.

One nameless file a rank: a count of signs of life, and a document with the exit note and what the
rank could not write. A rank that is killed leaves it, too.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import mmap
import os
import resource
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from supervisor.storage.files.json_files import parse_line
from supervisor.storage.files.kept_writes import KEPT_BYTES, KeptWrite

_HEAD = struct.Struct("<QQQ")
_COUNT = struct.Struct("<Q")
_ROOM_BYTES = KEPT_BYTES * 3 // 2
"""For what a rank has kept, in base 64. The file is sparse: it takes what is written to it. Less
where the user's own limit for the size of files (``ulimit -f``) is lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a rank has left.

    Attributes:
        note: the fields of its exit note; None before its end.
        refused: which file of ours the disk refused, and why; empty for none.
        writes: what it could not write.
    """

    note: Mapping[str, Any] | None = None
    refused: str = ""
    writes: Sequence[KeptWrite] = ()


class Handover:
    """As the parent sees it; the memory goes when it is closed.

    Attributes:
        paths: by which the ranks of this node open their places; empty if there are none.
    """

    def __init__(self, ranks: int) -> None:
        """`ranks`: of this node. Where the system has no such files, there are no places."""
        self._places: list[int] = []
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or too many open files
            for rank in range(ranks):
                self._places.append(os.memfd_create(f"supervisor-notes-{rank}", os.MFD_CLOEXEC))
        self.paths = [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._places]
        self.clear()

    def clear(self) -> None:
        """Before an attempt: what earlier ranks left is gone."""
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        room = _ROOM_BYTES if limit == resource.RLIM_INFINITY else min(limit, _ROOM_BYTES)
        for descriptor in self._places:
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, room)

    def signs_of_life(self, local_rank: int) -> int:
        """Returns the count; 0 without a place."""
        if local_rank >= len(self._places):
            return 0
        return int(_COUNT.unpack(os.pread(self._places[local_rank], _COUNT.size, 0))[0])

    def left_by(self, local_rank: int) -> Left:
        """Returns what a rank has left; nothing if it left nothing, or was killed meanwhile."""
        if local_rank >= len(self._places):
            return Left()
        place = self._places[local_rank]
        _, size, checksum = _HEAD.unpack(os.pread(place, _HEAD.size, 0))
        data = os.pread(place, min(size, _ROOM_BYTES), _HEAD.size)
        found = parse_line(data) if xxhash.xxh3_64_intdigest(data) == checksum else None
        if found is None:
            return Left()
        writes = [
            KeptWrite(path=Path(path), at=at, data=base64.b64decode(text))
            for path, at, text in found["writes"]
        ]
        return Left(note=found["note"], refused=found["refused"], writes=writes)

    def close(self) -> None:
        for descriptor in self._places:
            os.close(descriptor)
        self._places, self.paths = [], []


class OwnPlace:
    """A rank's own place in it."""

    def __init__(self, path: str) -> None:
        """Raises OSError: the parent is gone, or may make no file of any size."""
        self._has_ended = False
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            room = os.fstat(descriptor).st_size
            if room < 2 * _HEAD.size:
                raise OSError(errno.EFBIG, "no room", path)
            # Through a mapping: a script's limit for the size of its files is none for memory.
            self._memory = mmap.mmap(descriptor, room)
        finally:
            os.close(descriptor)

    def lives(self) -> None:
        """Counts a sign of life."""
        (count,) = _COUNT.unpack_from(self._memory, 0)
        _COUNT.pack_into(self._memory, 0, count + 1)

    def refuses(self, why: str) -> None:
        """Leaves why the disk refuses our files; empty: it takes them again."""
        if not self._has_ended:
            self._leave(None, why, ())

    def ends(self, note: Any, writes: Sequence[KeptWrite]) -> None:
        """Leaves the exit note, and what could not be written."""
        self._has_ended = True
        self._leave(note, "", writes)

    def _leave(self, note: Any, refused: str, writes: Sequence[KeptWrite]) -> None:
        told = [(str(w.path), w.at, base64.b64encode(w.data).decode()) for w in writes]
        data = json.dumps({"note": note, "refused": refused, "writes": told}).encode()
        room = len(self._memory) - _HEAD.size
        if len(data) > room:
            data = json.dumps({"note": note, "refused": refused, "writes": []}).encode()
        if len(data) > room:
            return
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data
        head = _HEAD.pack(0, len(data), xxhash.xxh3_64_intdigest(data))[_COUNT.size :]
        self._memory[_COUNT.size : _HEAD.size] = head


mine: OwnPlace | None = None
"""Of this process, if it is a rank that has one; set by the worker at its start."""
