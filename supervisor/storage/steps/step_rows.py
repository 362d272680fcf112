"""The flight recorder's file format: a header of 64 bytes, then rows of one fixed size.

The header holds magic, version, row size and, at byte 16, the number of complete rows, which is
stored after its row in one aligned 8-byte store: no reader sees half a row. The magic is stored
last, so that a file without it has no rows.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

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

OBSERVED_SHIFT = 16
"""Bit 16 + i of `flags`: slot i was observed (NaN is a value too)."""

ATTEMPT_OFFSET = 8
FLAGS_OFFSET = 12
RISK_OFFSET = int(STEP_DTYPE.fields["risk"][1])  # type: ignore[index]


def columns_path(path: Path) -> Path:
    """Where the names of the observed slots of the flight recorder at `path` are."""
    return path.with_name(path.name + ".columns.json")
