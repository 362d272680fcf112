"""The tape: what a fast-forward must know about the steps before a checkpoint.

A sequence of entries in order of time: values that the script read from tensors, states of the
random generators after regions that drew from them, and one mark per step to prove the replay
equal. `write_out` returns the offset that a checkpoint keeps; the next attempt drops what follows.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import ReplayError
from supervisor.storage.files.private_files import make_private, open_private

_HEAD = struct.Struct("<BI")
_STEP = struct.Struct("<qdIIQ")
_KEPT_BYTES = 1 << 26
_FLUSH_BYTES = 1 << 16


class EntryKind(enum.IntEnum):
    """What an entry holds."""

    FLOAT = 1
    INT = 2
    BOOL = 3
    ARRAY = 4
    RANDOM_STATE = 5
    STEP = 6
    FILE_SIZE = 7
    BATCH = 8
    EPOCH_END = 9
    """A loader with workers has come to its end."""
    UNUSED = 10
    """Places in a call of `torch.autograd.grad` that had no gradient."""
    DRAWN = 11
    """What loading a batch drew from the global random generators."""
    TENSOR = 12
    """A whole tensor that was read: its checksum, and its content where that is new."""
    WORKER_BATCH = 13
    """A batch that a loader worker has loaded."""


@dataclass(frozen=True, slots=True)
class StepMark:
    """What a replayed step is compared by."""

    step: int
    lr: float
    backward_calls: int
    forward_calls: int
    batch_signature: int

    @classmethod
    def unpack(cls, data: bytes) -> StepMark:
        return cls(*_STEP.unpack(data))


def entry_head(kind: int, size: int) -> bytes:
    """The header of an entry of `size` bytes."""
    return _HEAD.pack(kind, size)


_STEP_ENTRY = struct.Struct(f"{_HEAD.format}{_STEP.format[1:]}")
_STEP_ENTRY_BYTES = _STEP_ENTRY.size
_STEP_KIND, _STEP_BYTES = int(EntryKind.STEP), _STEP.size


class TapeWriter:
    """Appends entries; nothing reaches the file before `write_out` or a full buffer.

    Args:
        path: the tape of one rank.
        keep: offset up to which an earlier attempt's entries are kept; the rest is cut off.
        budget: bytes after which nothing more is written and `is_full` becomes true.
    """

    def __init__(self, path: Path, *, keep: int = 0, budget: int = 1 << 30) -> None:
        make_private(path.parent)
        self._file = open_private(path, "ab")
        os.ftruncate(self._file.fileno(), keep)
        self._memory = bytearray(2 * _FLUSH_BYTES)
        self._buffer = memoryview(self._memory)
        self._waiting = 0
        self._written = keep
        self._budget = budget
        self._flush_at = _FLUSH_BYTES
        self.is_full = False

    @property
    def offset(self) -> int:
        """Length of the tape, buffered entries included."""
        return self._written + self._waiting

    def append(self, kind: int, data: bytes) -> None:
        """Adds one entry; called many times per step. Never raises.

        What a full disk does not take is tried again later; past 64 MiB the tape counts as full.
        """
        self.append_split(_HEAD.pack(kind, len(data)), data)

    def append_split(self, head: bytes, data: bytes | memoryview) -> None:
        """Adds an entry that comes in two pieces, without joining them first.

        Args:
            head: of the entry, and what of it comes before `data`.
            data: bytes, copied at once (docs/architecture.md says why).
        """
        start = self._waiting
        middle = start + len(head)
        end = middle + len(data)
        if end > self._flush_at:
            start, middle, end = self._make_room(start, middle, end)
        self._waiting = end
        buffer = self._buffer
        buffer[start:middle] = head
        buffer[middle:end] = data

    def append_step(
        self, step: int, lr: float, backward_calls: int, forward_calls: int, signature: int
    ) -> None:
        """Adds the `StepMark` of these fields, without creating the object."""
        start = self._waiting
        end = start + _STEP_ENTRY_BYTES
        if end > self._flush_at:
            start, _, end = self._make_room(start, start, end)
        self._waiting = end
        _STEP_ENTRY.pack_into(
            self._memory,
            start,
            _STEP_KIND,
            _STEP_BYTES,
            step,
            lr,
            backward_calls,
            forward_calls,
            signature,
        )

    def write_out(self) -> int:
        """Hands all entries to the operating system; returns the offset behind them.

        They survive the death of the process then, and that of the machine after `sync`. Returns -1
        if the disk is full or gone.
        """
        return self._written if self._try_write_out() else -1

    def sync(self) -> None:
        """Waits until what was written out is on disk; any thread may call it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self._write_out()
        finally:
            self._file.close()

    def _make_room(self, start: int, middle: int, end: int) -> tuple[int, int, int]:
        """Writes out the buffer; returns the positions of the next entry."""
        self._try_write_out()
        moved = start - self._waiting
        if end - moved > len(self._memory):
            self._replace_buffer(end - moved)
        return start - moved, middle - moved, end - moved

    def _replace_buffer(self, size: int) -> None:
        memory = bytearray(size)
        memory[: self._waiting] = self._memory[: self._waiting]
        self._memory = memory
        self._buffer = memoryview(memory)

    def _write_out(self) -> None:
        if self._written + self._waiting > self._budget:
            self.is_full = True
        if not self.is_full and self._waiting:
            descriptor = self._file.fileno()
            done = 0
            try:
                while done < self._waiting:
                    done += os.write(descriptor, self._buffer[done : self._waiting])
            except OSError:
                os.ftruncate(descriptor, self._written)  # all of it comes again
                raise
            self._written += done
        self._forget()

    def _forget(self) -> None:
        self._waiting = 0
        if len(self._memory) > 2 * _FLUSH_BYTES:
            self._replace_buffer(2 * _FLUSH_BYTES)

    def _try_write_out(self) -> bool:
        try:
            self._write_out()
        except OSError:
            if self._waiting > _KEPT_BYTES:
                self.is_full = True
                self._forget()
            self._flush_at = 2 * max(_FLUSH_BYTES, self._waiting)
            if self._flush_at > len(self._memory):
                self._replace_buffer(self._flush_at)
            return False
        self._flush_at = _FLUSH_BYTES
        return True


class TapeReader:
    """Hands the entries of a tape out again, up to `end`.

    Raises:
        ReplayError: the file is missing or shorter than `end`.
    """

    def __init__(self, path: Path, *, end: int) -> None:
        try:
            with open(path, "rb") as file:
                self._data = file.read(end)
        except OSError as error:
            raise ReplayError(f"{path}: cannot be read ({error}): resume approximately") from error
        if len(self._data) < end:
            raise ReplayError(
                f"{path}: {len(self._data)} of {end} bytes are there: the recording is incomplete"
            )
        self._position = 0

    @classmethod
    def empty(cls) -> TapeReader:
        """An empty tape."""
        reader = cls.__new__(cls)
        reader._data, reader._position = b"", 0
        return reader

    @property
    def at_end(self) -> bool:
        return self._position >= len(self._data)

    def peek(self) -> int:
        """Returns the kind of the next entry, 0 at the end."""
        return 0 if self._position >= len(self._data) else self._data[self._position]

    def take(self, kind: int) -> bytes:
        """Returns the next entry's data.

        Raises:
            ReplayError: the next entry is of another kind: the script behaves differently.
        """
        if self.peek() != kind:
            found = EntryKind(self.peek()).name.lower() if self.peek() else "the end"
            raise ReplayError(
                f"the script now does '{EntryKind(kind).name.lower()}' where the recorded run had "
                f"'{found}'"
            )
        _, size = _HEAD.unpack_from(self._data, self._position)
        start = self._position + _HEAD.size
        self._position = start + size
        return self._data[start : self._position]

    def find_next(self, kind: int) -> bytes | None:
        """Returns the data of the next entry of `kind` without moving; None if there is none."""
        return next((data for found, data in self.ahead() if found == kind), None)

    def ahead(self) -> Iterator[tuple[int, bytes]]:
        """Yields kind and data of all entries from here on, without moving."""
        position = self._position
        while position < len(self._data):
            kind, size = _HEAD.unpack_from(self._data, position)
            start = position + _HEAD.size
            position = start + size
            yield kind, self._data[start:position]
