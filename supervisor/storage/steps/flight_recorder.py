"""The flight recorder: the numbers of every step, in a mapped file that outlives its writer.

A step is one `struct.pack_into` into shared memory. The kernel owns the pages, so a SIGKILL loses
nothing and nothing has to be flushed; the parent reads the same file as a heartbeat.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import time as clock
from collections.abc import Callable, Mapping, Sequence
from errno import ENOSPC
from pathlib import Path

from supervisor.errors import RunDirectoryError
from supervisor.records import StepRecord
from supervisor.storage.files.kept_writes import KEPT, KEPT_BYTES, KeptWrite
from supervisor.storage.files.private_files import make_private, reserve, write_json
from supervisor.storage.steps.flight_reader import FlightReader, read_steps
from supervisor.storage.steps.step_rows import (
    ANNOUNCED,
    BEGINS_TRAINING,
    FLAGS_OFFSET,
    GRAD_SEEN,
    HEADER,
    HEADER_BYTES,
    IN_ENVIRONMENT,
    LOSS_AND_NORM,
    LOSS_OFFSET,
    LOSS_SEEN,
    MAGIC,
    MAX_NAMES,
    OBSERVED,
    OBSERVED_OFFSET,
    OBSERVED_SHIFT,
    OBSERVED_SLOTS,
    OTHERS_TRAINED,
    PENDING,
    REPLAYED,
    RISK_OFFSET,
    ROW,
    ROW_BYTES,
    ROWS_OFFSET,
    SCALE_OFFSET,
    SCALER_SKIPPED,
    STEP_DTYPE,
    UPDATE_SKIPPED,
    VERSION,
    MoreValues,
    columns_path,
    more_path,
)

__all__ = [
    "GRAD_SEEN",
    "LOSS_SEEN",
    "PENDING",
    "REPLAYED",
    "SCALER_SKIPPED",
    "STEP_DTYPE",
    "UPDATE_SKIPPED",
    "FlightReader",
    "FlightRecorder",
    "read_steps",
]

CHUNK_ROWS = 4096
_AGAIN_S = 1.0
_MARKED_ROWS = 256
"""More than wait for their judgement."""
_RISK = struct.Struct("<d")
_UINT64 = 0xFFFFFFFFFFFFFFFF
_NOTHING_OBSERVED = (math.nan,) * OBSERVED_SLOTS


class FlightRecorder:
    """Writes one rank's steps. One writer a file; later attempts append to the same file.

    Args:
        on_left_out: called with the first observed name for which there is no slot.
        max_more_bytes, on_thinned: see `MoreValues`.

    Raises:
        RunDirectoryError: the file is not a flight recorder's, or of another version.
        OSError: the file cannot be opened. Rows for which the disk has no room are kept in memory
            until it has some (`KEPT_BYTES`): space is reserved in advance, see `reserve`.
    """

    def __init__(
        self,
        path: Path,
        attempt: int,
        *,
        on_left_out: Callable[[str], None] = lambda name: None,
        max_more_bytes: float = math.inf,
        on_thinned: Callable[[int], None] = lambda apart: None,
    ) -> None:
        self.path = path
        self._attempt = attempt
        self._borrowed_from: int | None = None
        self._again_at = 0.0
        make_private(path.parent)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._rows = self._open_rows()
            self._map(self._rows + 1)
        except BaseException:
            os.close(self._fd)
            raise
        self._more = MoreValues(path, self._rows, max_bytes=max_more_bytes, on_thinned=on_thinned)
        self._on_left_out: Callable[[str], None] | None = on_left_out
        self._slots = {name: slot for slot, name in enumerate(self._known_names())}

    @property
    def rows(self) -> int:
        """How many rows there are: the next step's row."""
        return self._rows

    def append(
        self,
        record: StepRecord,
        *,
        time: float,
        backward_calls: int = 1,
        forward_calls: int = 1,
        batch_signature: int = 0,
        risk: float = math.nan,
        flags: int = 0,
    ) -> int:
        """Stores one step and returns its row; readers see it completely or not at all."""
        row = self._rows
        if row >= self._capacity or (self._borrowed_from is not None and time >= self._again_at):
            self._map(row + 1)
        if record.loss_seen:
            flags |= LOSS_SEEN
        if record.grad_norm_seen:
            flags |= GRAD_SEEN
        if record.scaler_skipped:
            flags |= SCALER_SKIPPED
        if record.others_trained:
            flags |= OTHERS_TRAINED
        if record.begins_training:
            flags |= BEGINS_TRAINING
        if record.announced:
            flags |= ANNOUNCED
        if record.in_environment:
            flags |= IN_ENVIRONMENT
        observed: Sequence[float] = _NOTHING_OBSERVED
        if record.observed:
            observed, seen = self._observed(row, record.observed)
            flags |= seen
        ROW.pack_into(
            self._memory,
            HEADER_BYTES + row * ROW_BYTES,
            record.step,
            self._attempt,
            flags,
            time,
            record.loss,
            record.grad_norm,
            record.lr,
            record.loss_scale,
            record.step_time_s,
            record.memory_gib,
            record.batch_size,
            backward_calls,
            forward_calls,
            batch_signature & _UINT64,
            risk,
            *observed,
        )
        self._rows = self._count[0] = row + 1
        return row

    def _observed(self, row: int, found: Mapping[str, float]) -> tuple[list[float], int]:
        """Returns the values of a row's slots and their flags; stores the rest in `MoreValues`."""
        values = [math.nan] * OBSERVED_SLOTS
        more: list[tuple[int, float]] = []
        flags = 0
        for name, value in found.items():
            slot = self._slots.get(name)
            if slot is None:
                slot = self._register(name)
            if 0 <= slot < OBSERVED_SLOTS:
                values[slot] = value
                flags |= 1 << (OBSERVED_SHIFT + slot)
            elif slot >= 0:
                more.append((slot, value))
        if more:
            self._more.append(row, more)
        return values, flags

    def complete(self, row: int, record: StepRecord) -> None:
        """Stores what was still to come of a row that was appended as `PENDING`: loss, norm, loss
        scale and observed values."""
        at = HEADER_BYTES + row * ROW_BYTES
        memory, flags = self._memory, 0
        LOSS_AND_NORM.pack_into(memory, at + LOSS_OFFSET, record.loss, record.grad_norm)
        _RISK.pack_into(memory, at + SCALE_OFFSET, record.loss_scale)
        if record.observed:
            observed, flags = self._observed(row, record.observed)
            OBSERVED.pack_into(memory, at + OBSERVED_OFFSET, *observed)
        if record.loss_seen:
            flags |= LOSS_SEEN
        if record.grad_norm_seen:
            flags |= GRAD_SEEN
        if record.scaler_skipped:
            flags |= SCALER_SKIPPED
        at += FLAGS_OFFSET
        known = int.from_bytes(memory[at : at + 4], "little")
        memory[at : at + 4] = (known & ~PENDING | flags).to_bytes(4, "little")

    def mark(self, row: int, *, flags: int) -> None:
        """Adds `flags` to those of a stored row, in place.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self._rows:
            raise IndexError(f"row {row} of {self._rows}")
        at = HEADER_BYTES + row * ROW_BYTES + FLAGS_OFFSET
        known = int.from_bytes(self._memory[at : at + 4], "little")
        self._memory[at : at + 4] = (known | flags).to_bytes(4, "little")

    def mark_risk(self, rows: Sequence[int], risk: float) -> None:
        """Sets the risk of several stored rows, in place.

        Raises:
            IndexError: there is no such row.
        """
        if rows and not 0 <= min(rows) <= max(rows) < self._rows:
            raise IndexError(f"rows {min(rows)} to {max(rows)} of {self._rows}")
        first = HEADER_BYTES + RISK_OFFSET
        for row in rows:
            _RISK.pack_into(self._memory, first + row * ROW_BYTES, risk)

    def close(self) -> None:
        """Unmaps the file; a second call does nothing."""
        if self._fd < 0:
            return
        if self._borrowed_from is not None:
            self._map(max(1, self._rows))
        for kept in self._kept():
            KEPT.add(kept)
        self._unmap()
        self._more.close()
        os.close(self._fd)
        self._fd = -1

    def _open_rows(self) -> int:
        size = os.fstat(self._fd).st_size
        head = os.pread(self._fd, HEADER.size, 0)
        if len(head) < HEADER.size or head[: len(MAGIC)] == bytes(len(MAGIC)):
            return 0  # `_map` writes its head
        magic, version, row_bytes, rows = HEADER.unpack(head)
        if magic != MAGIC or version != VERSION or row_bytes != ROW_BYTES:
            raise RunDirectoryError(
                f"{self.path}: not a flight recorder of this version: "
                "continue the run with the version that began it, or start a new run directory"
            )
        return min(int(rows), max(0, size - HEADER_BYTES) // ROW_BYTES)

    def _map(self, rows: int) -> None:
        """Makes room for `rows` rows at least, up to a whole chunk."""
        capacity = -(-rows // CHUNK_ROWS) * CHUNK_ROWS
        size = HEADER_BYTES + capacity * ROW_BYTES
        try:
            reserve(self._fd, size)
            memory = mmap.mmap(self._fd, size)
            if memory[: len(MAGIC)] != MAGIC:
                memory[: HEADER.size] = self._head()
            for kept in self._kept():
                memory[kept.at : kept.at + len(kept.data)] = kept.data
            self._borrowed_from = None
        except OSError:
            memory = self._borrow(size)
        if hasattr(self, "_memory"):
            self._unmap()
        self._memory = memory
        self._view = memoryview(memory)
        # A memoryview of "Q" stores all eight bytes at once; `struct` may store byte by byte.
        self._count = self._view[ROWS_OFFSET : ROWS_OFFSET + 8].cast("Q")
        self._capacity = capacity
        self._count[0] = self._rows

    def _borrow(self, size: int) -> mmap.mmap:
        """Returns memory that no file has, for the rows that the disk refuses until it takes them.

        Raises:
            OSError: there are too many of them.
        """
        if self._borrowed_from is None:
            # The newest rows of the file may still be marked.
            self._borrowed_from = max(0, self._rows - _MARKED_ROWS)
            start = HEADER_BYTES + self._borrowed_from * ROW_BYTES
            held = os.pread(self._fd, (self._rows - self._borrowed_from) * ROW_BYTES, start)
        else:
            start, held = self._kept()[0].at, self._kept()[0].data
        if len(held) > KEPT_BYTES:
            raise OSError(ENOSPC, "the disk refuses the steps for too long", str(self.path))
        memory = mmap.mmap(-1, size)  # what is not touched takes no memory
        memory[start : start + len(held)] = held
        self._again_at = clock.time() + _AGAIN_S
        return memory

    def _kept(self) -> list[KeptWrite]:
        """Returns the rows that the file lacks, and then what says that they are there."""
        first = self._borrowed_from
        if first is None:
            return []
        start, stop = (HEADER_BYTES + row * ROW_BYTES for row in (first, self._rows))
        return [
            KeptWrite(path=self.path, at=start, data=self._memory[start:stop]),
            KeptWrite(path=self.path, at=0, data=self._head()),
        ]

    def _head(self) -> bytes:
        return HEADER.pack(MAGIC, VERSION, ROW_BYTES, self._rows)

    def _unmap(self) -> None:
        self._count.release()
        self._view.release()
        self._memory.close()

    def _known_names(self) -> list[str]:
        try:
            names = json.loads(columns_path(self.path).read_text())
            return [str(name) for name in names][:MAX_NAMES]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError):
            # Whose values the old rows hold is lost: new names must not lay claim to their slots.
            lost = MAX_NAMES if more_path(self.path).exists() else OBSERVED_SLOTS
            return [f"observed_{slot}" for slot in range(lost)]

    def _register(self, name: str) -> int:
        """Returns the slot of a new name, or -1 if all are taken or the disk is full."""
        slot = len(self._slots)
        if slot >= MAX_NAMES:
            told, self._on_left_out = self._on_left_out, None
            if told is not None:
                told(name)
            return -1
        try:
            write_json(columns_path(self.path), [*self._slots, name])
        except OSError:
            return -1  # tried again with the name's next value
        self._slots[name] = slot
        return slot
