"""A mapped file in which each rank of a node leaves the newest thing that it has to say."""

from __future__ import annotations

import struct
from pathlib import Path

import xxhash

from supervisor.storage.files.mapped_file import map_shared

NOTE_BYTES = 16384
"""Room for one rank's note."""

_HEAD = struct.Struct("<QQ")


class RankNotes:
    """Each rank overwrites its own note at any time, and reads the others' without locks.

    A note stands behind its length and a checksum, so one that is half written is none.

    Args:
        path: the same for all ranks of the node; a new file for each attempt.
        rank, ranks: place among the ranks of this node, and how many there are.

    Raises:
        OSError: it cannot be created or mapped.
    """

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self._memory = map_shared(path, ranks * NOTE_BYTES)

    def write(self, note: bytes) -> None:
        """Puts it in the place of this rank's last one; one that has no room leaves none."""
        start = self.rank * NOTE_BYTES
        if len(note) > NOTE_BYTES - _HEAD.size:
            note = b""
        head = _HEAD.pack(len(note), xxhash.xxh3_64_intdigest(note))
        self._memory[start : start + len(head) + len(note)] = head + note

    def read(self, rank: int) -> bytes | None:
        """Returns what a rank has left; None if there is nothing, or half of it."""
        start = rank * NOTE_BYTES
        size, checksum = _HEAD.unpack_from(self._memory, start)
        if not 0 < size <= NOTE_BYTES - _HEAD.size:
            return None
        start += _HEAD.size
        note = bytes(self._memory[start : start + size])
        return note if xxhash.xxh3_64_intdigest(note) == checksum else None
