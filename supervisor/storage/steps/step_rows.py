"""The flight recorder's file format: a header of 64 bytes, then rows of one fixed size.

The header holds magic, version, row size and, at byte 16, the number of complete rows, which is
stored after its row in one aligned 8-byte store: no reader sees half a row. The magic is stored
last, so that a file without it has no rows.

The values of a step by name, as other programs get them.

Observed values beyond the slots of a flight recorder's row, in a file beside it.

One entry per value, by row: row (u64), slot (u64), value (f64). A step's entries are written before
its row is counted, so that readers of the row see them too.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from supervisor.records import StepRecord

MAGIC = b"TSSTEPS1"
VERSION = 1
HEADER = struct.Struct("<8sIIQ")
HEADER_BYTES = 64
ROWS_OFFSET = 16
OBSERVED_SLOTS = 16

STEP_DTYPE = np.dtype(
    [
        ("step", "<i8"),
        ("attempt", "<i4"),
        ("flags", "<u4"),
        ("time", "<f8"),
        ("loss", "<f8"),
        ("grad_norm", "<f8"),
        ("lr", "<f8"),
        ("loss_scale", "<f8"),
        ("step_time_s", "<f8"),
        ("memory_gib", "<f8"),
        ("batch_size", "<i8"),
        ("backward_calls", "<i4"),
        ("forward_calls", "<i4"),
        ("batch_signature", "<u8"),
        ("risk", "<f8"),
        ("observed", "<f8", (OBSERVED_SLOTS,)),
    ]
)
"""One step: `time` in unix seconds, `risk` NaN until judged, the rest as in `StepRecord`."""

FIXED = struct.Struct("<qiId6dqiiQd")
OBSERVED = struct.Struct(f"<{OBSERVED_SLOTS}d")
ROW = struct.Struct(f"{FIXED.format}{OBSERVED_SLOTS}d")
ROW_BYTES = ROW.size
"""The same layout for `struct`, which packs several times faster than numpy does."""

LOSS_SEEN = 1
GRAD_SEEN = 2
SCALER_SKIPPED = 4
UPDATE_SKIPPED = 8
"""The policy left this update out."""
REPLAYED = 16
"""The step repeats an earlier one after a restart or rollback; an older row has it too."""
OTHERS_TRAINED = 32
BEGINS_TRAINING = 64
ANNOUNCED = 128
IN_ENVIRONMENT = 256
PENDING = 512
"""The numbers of the step have not come from its device yet. Readers see no such row at the end."""

OBSERVED_SHIFT = 16
"""Bit 16 + i of `flags`: slot i was observed (NaN is a value too)."""

ATTEMPT_OFFSET = 8
FLAGS_OFFSET = 12
RISK_OFFSET = int(STEP_DTYPE.fields["risk"][1])  # type: ignore[index]
LOSS_OFFSET = int(STEP_DTYPE.fields["loss"][1])  # type: ignore[index]
LOSS_AND_NORM = struct.Struct("<2d")
SCALE_OFFSET = int(STEP_DTYPE.fields["loss_scale"][1])  # type: ignore[index]
OBSERVED_OFFSET = int(STEP_DTYPE.fields["observed"][1])  # type: ignore[index]


def columns_path(path: Path) -> Path:
    """Where the names of the observed slots of the flight recorder at `path` are."""
    return path.with_name(path.name + ".columns.json")


COLUMNS = ("loss", "grad_norm", "lr", "loss_scale", "step_time_s", "batch_size", "memory_gib")
MARKS = {
    "others_trained": OTHERS_TRAINED,
    "begins_training": BEGINS_TRAINING,
    "announced": ANNOUNCED,
    "in_environment": IN_ENVIRONMENT,
}
"""Values that are 1 at the steps that have their flag, and absent elsewhere."""


def step_values(record: StepRecord) -> Mapping[str, float]:
    """Returns the observed values of a step, NaN included."""
    values = {name: float(getattr(record, name)) for name in COLUMNS}
    seen = {"loss": record.loss_seen, "grad_norm": record.grad_norm_seen}
    known = {name: value for name, value in values.items() if seen.get(name, not math.isnan(value))}
    if record.batch_size:
        known["batch_size"] = record.batch_size
    else:
        known.pop("batch_size")
    known |= {name: 1 for name in MARKS if getattr(record, name)}
    return {**known, **record.observed}


ENTRY = struct.Struct("<QQd")
ENTRY_DTYPE = np.dtype([("row", "<u8"), ("slot", "<u8"), ("value", "<f8")])
ENTRIES_AT_ONCE = 1 << 18
"""Entries that are read together where many are read: 6 MB."""
MAX_NAMES = 256
"""Names in all: a script that keeps inventing names must not fill the disk."""


def more_path(path: Path) -> Path:
    """Where the additional values of the flight recorder at `path` are."""
    return path.with_name(path.name + ".more")


class MoreValues:
    """Appends additional values; the file is created with the first of them.

    It stays below its budget: past half of it only every fourth row's values are kept, past half of
    the rest every sixteenth row's, and so on.

    Args:
        path: of the flight recorder.
        rows: rows that it has; entries of later ones belong to rows that were never counted, and
            are dropped.
        max_bytes: the budget.
        on_thinned: called with the new spacing of the rows that are kept.
    """

    def __init__(
        self,
        path: Path,
        rows: int,
        *,
        max_bytes: float = math.inf,
        on_thinned: Callable[[int], None] = lambda apart: None,
    ) -> None:
        self._path = more_path(path)
        self._fd = -1
        self._max_bytes = max_bytes
        self._on_thinned = on_thinned
        self._apart = 1
        self._offered = -1
        if self._path.exists():
            self._open()
            os.ftruncate(self._fd, ENTRY.size * _first_of(self._fd, rows))

    def append(self, row: int, values: Sequence[tuple[int, float]]) -> None:
        """Stores (slot, value) of a row not counted yet; on a full disk they are dropped."""
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._open()
            end = os.fstat(self._fd).st_size
            self._thin(end)
            self._offered += 1
            if self._max_bytes <= 0 or self._offered % self._apart:
                return
            data = b"".join(ENTRY.pack(row, slot, value) for slot, value in values)
            if os.write(self._fd, data) != len(data):
                os.ftruncate(self._fd, end)

    def _thin(self, size: int) -> None:
        before = self._apart
        while size >= self._max_bytes * (1.0 - 0.5 / math.sqrt(self._apart)) < self._max_bytes:
            self._apart *= 4
        if self._apart > before:
            self._on_thinned(self._apart)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)


def read_more(path: Path, start: int, stop: int) -> list[tuple[int, int, float]]:
    """Returns (row, slot, value) of rows `start` to `stop` (exclusive), in their order."""
    try:
        fd = os.open(more_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        first, last = _first_of(fd, start), _first_of(fd, stop)
        data = os.pread(fd, ENTRY.size * (last - first), ENTRY.size * first)
    finally:
        os.close(fd)
    whole = len(data) - len(data) % ENTRY.size
    return list(ENTRY.iter_unpack(data[:whole]))


def more_chunks(path: Path, stop: int) -> Iterator[np.ndarray]:
    """Yields the entries of the rows before `stop` as arrays of `ENTRY_DTYPE`, bounded in size."""
    try:
        fd = os.open(more_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        last = _first_of(fd, stop)
        for first in range(0, last, ENTRIES_AT_ONCE):
            count = min(ENTRIES_AT_ONCE, last - first)
            data = os.pread(fd, ENTRY.size * count, ENTRY.size * first)
            yield np.frombuffer(data, ENTRY_DTYPE, count=len(data) // ENTRY.size)
    finally:
        os.close(fd)


def _first_of(fd: int, row: int) -> int:
    """The number of the first entry of `row` or a later one."""
    low, high = 0, os.fstat(fd).st_size // ENTRY.size
    while low < high:
        middle = (low + high) // 2
        entry = os.pread(fd, ENTRY.size, ENTRY.size * middle)
        if ENTRY.unpack(entry)[0] < row:
            low = middle + 1
        else:
            high = middle
    return low
