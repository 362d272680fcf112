"""Small mapped files by which the processes of one machine tell each other something.

What a worker tells its parent about signals while it runs, in a small mapped file.

The parent must know before it sends one: on which signal stacks are written, and whether the
worker was sent the same signal by somebody else a moment ago.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from supervisor.storage.files.private_files import make_private, map_shared

SLOT_BYTES = 16384
"""Room for one rank's message: some 150 bytes of numbers, and its observed values."""

TIMEOUT_S = 60.0
"""A rank that makes no update for so long while the others wait counts as training by itself; the
parent ends hanging ranks, usually later."""

_HEAD = struct.Struct("<QQQ")
_STATUS_BYTES = 8
_LEFT = 1
_AT_ONCE = 50
"""Looks without a pause, some ten microseconds: ranks arrive at nearly the same time, where each
has a processor."""
_SHORTEST_S = 50e-6
"""Of a sleep, whatever is asked for: Linux lets it end with others."""
_LONGEST_S = 1e-3
_ASKS_S = 20e-3
"""Between two questions whether a rank comes at all."""


class StepMailbox:
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
        may_still_come: asked while others take long: whether one of them is started again, for
            which there is no time limit here.

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
        self._at_once = _AT_ONCE if ranks <= (os.cpu_count() or 1) else 1
        self._count = 0
        self.was_left = False
        self.may_still_come: Callable[[], bool] = lambda: False

    @property
    def count(self) -> int:
        """How many exchanges there were."""
        return self._count

    def skip_to(self, count: int) -> None:
        """This rank takes up where another process of its place had made so many exchanges."""
        self._count = count

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
        waits_s = self._timeout_s if timeout_s is None else timeout_s
        for rank in range(self.ranks):
            if rank != self.rank:
                found = self._await(rank, waits_s, is_in_vain)
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
        self, rank: int, waits_s: float, is_in_vain: Callable[[], bool] | None
    ) -> bytes | None:
        words, count, left = self._words, self._count, rank * self._slot_bytes // 8
        told = self._buffer_of(rank) // 8
        looks, waited_s, asks_at_s, deadline = 0, 0.0, _ASKS_S, math.inf
        while True:
            if words[told] == count:
                found = self._read(rank)
                if found is not None:
                    return found
            if words[left] == _LEFT:
                return self._last_words(rank)
            looks += 1
            if looks < self._at_once:
                continue
            if waited_s >= asks_at_s:
                asks_at_s += _ASKS_S
                deadline = min(deadline, time.monotonic() + waits_s)
                if any(map(self._has_left, range(self.ranks))):
                    return self._last_words(rank)  # who heard all before it left heard this one
                if self.may_still_come():
                    deadline = time.monotonic() + self._timeout_s
                elif time.monotonic() > deadline or (is_in_vain is not None and is_in_vain()):
                    return None
            # Who waits, sleeps: the rank that is waited for may need this processor. Half of what
            # was waited for so far may be lost.
            pause_s = min(waited_s / 2, _LONGEST_S)
            time.sleep(pause_s)
            waited_s += pause_s + _SHORTEST_S

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


NOTE_BYTES = 16384
"""Room for one rank's note."""

_NOTE_HEAD = struct.Struct("<QQ")


class RankStatus:
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
        if len(note) > NOTE_BYTES - _NOTE_HEAD.size:
            note = b""
        head = _NOTE_HEAD.pack(len(note), xxhash.xxh3_64_intdigest(note))
        self._memory[start : start + len(head) + len(note)] = head + note

    def read(self, rank: int) -> bytes | None:
        """Returns what a rank has left; None if there is nothing, or half of it."""
        start = rank * NOTE_BYTES
        size, checksum = _NOTE_HEAD.unpack_from(self._memory, start)
        if not 0 < size <= NOTE_BYTES - _NOTE_HEAD.size:
            return None
        start += _NOTE_HEAD.size
        note = bytes(self._memory[start : start + size])
        return note if xxhash.xxh3_64_intdigest(note) == checksum else None


_ENTRY_BYTES = 8
_GONE = 2**63
_PAUSE_S = 1e-3


class NodeBarrier:
    """Counts of each rank how often it was here. No rank waits for one that has left.

    Args:
        path: the same for all ranks; created by whoever comes first. A new file for each attempt.
        rank: among the ranks of this node.
        ranks: how many there are.

    Raises:
        OSError: it cannot be created or mapped.
    """

    def __init__(self, path: Path, rank: int, ranks: int, *, timeout_s: float = TIMEOUT_S) -> None:
        self._counts = memoryview(map_shared(path, ranks * _ENTRY_BYTES)).cast("Q")
        self._rank = rank
        self._others = [other for other in range(ranks) if other != rank]
        self._timeout_s = timeout_s
        self._count = 0

    def wait(self) -> None:
        """Returns when all ranks have called this as often, or have left, or it took too long."""
        self._count += 1
        self._counts[self._rank] = self._count
        deadline = time.monotonic() + self._timeout_s
        for other in list(self._others):
            while self._counts[other] < self._count:
                if time.monotonic() > deadline:
                    self._others.remove(other)
                    break
                time.sleep(_PAUSE_S)

    def leave(self) -> None:
        """The others are not to wait for this rank any more."""
        self._counts[self._rank] = _GONE


_TIME = struct.Struct("<d")
_SIGNALS = 65
"""As many as Linux has, and place 0 for the number of the signal that writes stacks."""


class SignalTimes:
    """The worker's side: a time for each signal, of its last arrival, in unix seconds."""

    def __init__(self, path: Path) -> None:
        """Begins with no arrivals.

        Raises:
            OSError: the disk refuses.
        """
        make_private(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, bytes(_SIGNALS * _TIME.size))  # has its room on the disk from here
            self._map = mmap.mmap(descriptor, _SIGNALS * _TIME.size)
        finally:
            os.close(descriptor)

    def arrived(self, signum: int, time: float) -> None:
        if 0 < signum < _SIGNALS:
            _TIME.pack_into(self._map, signum * _TIME.size, time)

    def stacks_come_by(self, signum: int) -> None:
        _TIME.pack_into(self._map, 0, float(signum))


def arrived_at(path: Path, signum: int) -> float:
    """Returns when the worker was last sent this signal, by whomever; 0 for never, or unknown."""
    return _read(path, signum)


def stacks_signal(path: Path) -> int:
    """Returns the signal on which the worker writes its stacks; 0 if there is none."""
    return int(_read(path, 0))


def _read(path: Path, place: int) -> float:
    try:
        data = path.read_bytes()[place * _TIME.size :][: _TIME.size]
    except OSError:
        return 0.0
    return float(_TIME.unpack(data)[0]) if len(data) == _TIME.size else 0.0


_COUNTER = struct.Struct("<Q")


def read_count(path: Path) -> int | None:
    """Returns what a rank has counted in a file that it maps; None if it is missing or short."""
    try:
        data = path.read_bytes()[: _COUNTER.size]
    except OSError:
        return None
    return int(_COUNTER.unpack(data)[0]) if len(data) == _COUNTER.size else None


def replayed_steps(path: Path, since_s: float) -> int | None:
    """Steps that the fast-forward of this attempt has done; None while there is none.

    Args:
        path: `RunDirectory.replayed`, which the worker maps.
        since_s: unix time at which the attempt began.
    """
    try:
        # Writing to a mapped file does not update its time, which is that of the mapping or later.
        is_fresh = path.stat().st_mtime >= since_s - 1.0
    except OSError:
        return None
    return read_count(path) if is_fresh else None


def describe_replay(done: int, target: int, elapsed_s: float, step_s: float = 0.0) -> str:
    """Returns one line.

    Args:
        done, target: steps.
        elapsed_s: since the attempt began, its start included: the time left is an upper bound.
        step_s: what a step took lately; 0 where that is not known.
    """
    done = min(done, target)
    text = f"fast-forwarding: {done} of {target} steps"
    if target:
        text += f" ({100 * done // target} %)"
    text += f", for {elapsed_s:.0f} s"
    if step_s and done < target:
        text += f", about {step_s * (target - done):.0f} s left"
    elif 0 < done < target:
        text += f", at most {elapsed_s * (target - done) / done:.0f} s left"
    return text
