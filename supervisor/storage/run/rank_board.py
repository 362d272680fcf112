"""A small mapped file by which the ranks of one node tell each other a few numbers each step."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from supervisor.storage.files.mapped_file import map_shared

SLOT_BYTES = 16384
"""Room for one rank's message: some 150 bytes of numbers, and its observed values."""

TIMEOUT_S = 60.0
"""A rank that makes no update for so long while the others wait counts as training by itself; the
parent ends hanging ranks, usually later."""

_HEAD = struct.Struct("<QQQ")
_STATUS_BYTES = 8
_LEFT = 1
_AT_ONCE = 20
"""Looks without a pause, some ten microseconds: ranks arrive at nearly the same time."""
_SPINS = 200
_PAUSES_S = (0.0, 50e-6, 1e-3)
"""For so many looks each; the first one lets others run that wait for this processor."""


class RankBoard:
    """Each rank writes into its own slot and reads the others', without locks or communication.

    A slot has two buffers in turn. A rank writes its next message only after it has read all of
    this one, so nobody is more than one message ahead, and nothing is overwritten that somebody
    still has to read. The number of a message is stored behind it, with a checksum, so half a
    message is never read.

    Args:
        path: the same for all ranks; created by whoever comes first. A new file for each attempt.
        rank, ranks: place among the ranks of this node, and how many there are.
        slot_bytes: room for what one of them tells, twice; a multiple of 8.

    Attributes:
        was_left: an exchange has failed because another rank had left.

    Raises:
        OSError: it cannot be created or mapped.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        ranks: int,
        *,
        timeout_s: float = TIMEOUT_S,
        slot_bytes: int = SLOT_BYTES,
    ) -> None:
        self._slot_bytes = slot_bytes
        self._buffer_bytes = (slot_bytes - _STATUS_BYTES) // 16 * 8
        self._memory = map_shared(path, ranks * slot_bytes)
        self._view = memoryview(self._memory)
        # A memoryview of "Q" stores all eight bytes at once.
        self._words = self._view.cast("Q")
        self.rank = rank
        self.ranks = ranks
        self._timeout_s = timeout_s
        self._count = 0
        self.was_left = False

    @property
    def max_bytes(self) -> int:
        """Of one message."""
        return self._buffer_bytes - _HEAD.size

    def exchange(
        self,
        message: bytes,
        timeout_s: float | None = None,
        is_in_vain: Callable[[], bool] | None = None,
    ) -> list[bytes] | None:
        """Sends a message and returns the messages of all ranks of the same call, in the order of
        ranks.

        Args:
            message: of this rank.
            timeout_s: how long the others may take; None for what was given at first.
            is_in_vain: asked again and again while they take long, whether one cannot come.

        Returns:
            None if a rank has left or does not answer: from then on for everybody.

        Raises:
            ValueError: the message is longer than `max_bytes`.
        """
        if len(message) > self.max_bytes:
            raise ValueError(f"{len(message)} bytes are more than the {self.max_bytes} of a slot")
        self._count += 1
        self._write(message)
        told = [message] * self.ranks
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        for rank in range(self.ranks):
            if rank != self.rank:
                found = self._await(rank, deadline, is_in_vain)
                if found is None:
                    self.leave()
                    return None
                told[rank] = found
        return told

    def leave(self) -> None:
        """Ends this rank's exchange, so that the others do not wait for it."""
        self._words[self.rank * self._slot_bytes // 8] = _LEFT

    def close(self) -> None:
        """Leaves, and unmaps the file."""
        self.leave()
        self._words.release()
        self._view.release()
        self._memory.close()

    def _write(self, message: bytes) -> None:
        at = self._buffer_of(self.rank)
        start = at + _HEAD.size
        self._memory[start : start + len(message)] = message
        self._words[at // 8 + 1] = len(message)
        self._words[at // 8 + 2] = xxhash.xxh3_64_intdigest(message, seed=self._count)
        self._words[at // 8] = self._count

    def _await(
        self, rank: int, deadline: float, is_in_vain: Callable[[], bool] | None
    ) -> bytes | None:
        tries = 0
        while True:
            found = self._read(rank)
            if found is not None:
                return found
            if self._has_left(rank):
                return self._last_words(rank)
            tries += 1
            if tries < _AT_ONCE:
                continue
            if tries % _SPINS == 0:
                if any(map(self._has_left, range(self.ranks))):
                    return self._last_words(rank)  # who heard all before it left heard this one
                if time.monotonic() > deadline or (is_in_vain is not None and is_in_vain()):
                    return None
            time.sleep(_PAUSES_S[min(tries // _SPINS, len(_PAUSES_S) - 1)])

    def _last_words(self, rank: int) -> bytes | None:
        """It may have told this before it, or another one, left."""
        found = self._read(rank)
        self.was_left = found is None
        return found

    def _has_left(self, rank: int) -> bool:
        return bool(self._words[rank * self._slot_bytes // 8] == _LEFT)

    def _read(self, rank: int) -> bytes | None:
        """Returns what a rank tells with this exchange; None while it is not there, or half."""
        at = self._buffer_of(rank)
        word = at // 8
        if self._words[word] != self._count:
            return None
        size, checksum = self._words[word + 1], self._words[word + 2]
        start = at + _HEAD.size
        if size > self.max_bytes:
            return None
        message = bytes(self._memory[start : start + size])
        whole = xxhash.xxh3_64_intdigest(message, seed=self._count) == checksum
        return message if whole else None

    def _buffer_of(self, rank: int) -> int:
        return rank * self._slot_bytes + _STATUS_BYTES + (self._count % 2) * self._buffer_bytes
