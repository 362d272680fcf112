"""The replay log: what a fast-forward must know about the steps before a checkpoint.

A sequence of entries in order of time: values that the script read from tensors, states of the
random generators where the script drew from them behind a region, and one mark per step to prove
the replay equal. `write_out` returns the offset that a checkpoint keeps; the next attempt drops
what follows. `ReplayLogReader` reads them again.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.storage.files.private_files import make_private, open_private

REPLAY_LOG_FORMAT = 3
"""A checkpoint names the format of its replay log; a replay log of another one is not replayed."""
HEAD = struct.Struct("<BI")
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
    OBJECTS = 14
    """Objects of Python that another rank told."""
    TRAINING = 15
    """The first forward or update: what was read before was computed without training."""
    STREAM_BATCH = 16
    """A batch of an iterable-style data set."""
    STREAM_END = 17
    """Such a data set has no more samples."""
    HOOK = 18
    """A backward calls a gradient hook of the script."""
    FIRST_AVERAGE = 19
    """In this forward of its step (its number) a wrapper of several ranks has begun to average, or
    arranged its buckets."""


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

    @staticmethod
    def pack(
        step: int, lr: float, backward_calls: int, forward_calls: int, signature: int
    ) -> bytes:
        """Returns what `append_step` writes of these fields, without creating the object."""
        return _STEP.pack(step, lr, backward_calls, forward_calls, signature)


_STEP_ENTRY = struct.Struct(f"{HEAD.format}{_STEP.format[1:]}")
_STEP_ENTRY_BYTES = _STEP_ENTRY.size
_STEP_KIND, _STEP_BYTES = int(EntryKind.STEP), _STEP.size


class ReplayLogWriter:
    """Appends entries; nothing reaches the file before `write_out` or a full buffer.

    Args:
        path: the replay log of one rank.
        keep: offset up to which an earlier attempt's entries are kept; the rest is cut off.
        budget: bytes after which nothing more is written and `is_full` becomes true.
        on_full: called once, with why nothing more is written.

    Attributes:
        before_writing: called before entries leave the buffer: what is still to be put between
            them comes now.
        before_marking: called before a place is marked: what a replay to it needs comes now.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: int = 0,
        budget: int = 1 << 30,
        on_full: Callable[[str], None] = lambda why: None,
    ) -> None:
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
        self.before_writing: Callable[[], None] = lambda: None
        self.before_marking: Callable[[], object] = lambda: None
        self._on_full = on_full
        self._mark = -1

    @property
    def offset(self) -> int:
        """Length of the replay log, buffered entries included."""
        return self._written + self._waiting

    def append(self, kind: int, data: bytes) -> None:
        """Adds one entry; called many times per step. Never raises.

        What a full disk does not take is tried again later; past 64 MiB the replay log counts as
        full.
        """
        if self.is_full:
            return
        start = self._waiting
        middle = start + HEAD.size
        end = middle + len(data)
        if end > self._flush_at:
            start, middle, end = self._make_room(start, middle, end)
        self._waiting = end
        HEAD.pack_into(self._memory, start, kind, len(data))
        self._buffer[middle:end] = data

    def insert(self, at: int, kind: int, data: bytes) -> None:
        """Adds one entry at an earlier `offset` that no `write_out` has passed yet."""
        if self.is_full:
            return
        start, size = at - self._written, HEAD.size + len(data)
        if at < self._mark:
            self._mark += size
        end = self._waiting + size
        if end > len(self._memory):
            self._replace_buffer(end + _FLUSH_BYTES)
        later = bytes(self._buffer[start : self._waiting])
        HEAD.pack_into(self._memory, start, kind, len(data))
        self._buffer[start + HEAD.size : start + size] = data
        self._buffer[start + size : end] = later
        self._waiting = end

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

    def mark(self) -> None:
        """Marks the end as it is now, where a replay may have to arrive; earlier marks are gone."""
        self.before_marking()
        self._mark = self.offset

    def write_out_to_mark(self) -> int:
        """As `write_out`, but returns the offset of the mark."""
        is_out = self._try_write_out() and self._mark <= self._written
        return self._mark if is_out else -1

    def sync(self) -> None:
        """Waits until what was written out is on disk; any thread may call it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.before_writing()
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
            size = f"{self._budget / (1 << 20):g} MiB"
            self._is_full_now(f"its {size} of disk are used up (fast_forward.tape_budget_mib)")
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

    def _is_full_now(self, why: str) -> None:
        if not self.is_full:
            self.is_full = True
            self._on_full(why)

    def _try_write_out(self) -> bool:
        self.before_writing()
        try:
            self._write_out()
        except OSError:
            if self._waiting > _KEPT_BYTES:
                self._is_full_now("the disk is full")
                self._forget()
            self._flush_at = 2 * max(_FLUSH_BYTES, self._waiting)
            if self._flush_at > len(self._memory):
                self._replace_buffer(self._flush_at)
            return False
        self._flush_at = _FLUSH_BYTES
        return True
