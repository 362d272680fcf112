"""What the live run writes on its tape of the values that the script reads, and back."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from supervisor.storage.steps.tape import EntryKind, TapeWriter
from supervisor.worker.recording.large_reads import LargeReads
from supervisor.worker.recording.random_states import RngRecorder

_FLOAT = struct.Struct("<d")
_INT = struct.Struct("<q")


def encode(kind: int, value: Any) -> bytes:
    """Returns a value that was read from a tensor as bytes, exactly."""
    if kind == EntryKind.FLOAT:
        return _FLOAT.pack(value)
    if kind == EntryKind.INT:
        return _INT.pack(value)
    if kind == EntryKind.BOOL:
        return b"\1" if value else b"\0"
    if isinstance(value, np.ndarray):
        head = json.dumps({"dtype": value.dtype.str, "shape": value.shape}).encode()
        return b"n" + _INT.pack(len(head)) + head + np.ascontiguousarray(value).tobytes()
    return b"j" + json.dumps(value).encode()  # Python's floats survive JSON exactly


def decode(kind: int, data: bytes) -> Any:
    """The inverse of `encode`."""
    if kind == EntryKind.FLOAT:
        return _FLOAT.unpack(data)[0]
    if kind == EntryKind.INT:
        return _INT.unpack(data)[0]
    if kind == EntryKind.BOOL:
        return data == b"\1"
    if data[:1] == b"n":
        size = _INT.unpack(data[1:9])[0]
        head = json.loads(data[9 : 9 + size])
        return np.frombuffer(data[9 + size :], dtype=head["dtype"]).reshape(head["shape"]).copy()
    return json.loads(data[1:])


class Recording:
    """The live side of the tape."""

    def __init__(self, tape: TapeWriter, large: LargeReads) -> None:
        self.tape = tape
        self.large = large
        self.random = RngRecorder(tape)

    def read(self, kind: int, call: Callable[[], Any]) -> Any:
        value = call()
        self.tape.append(kind, encode(kind, value))
        return value

    def note(self, kind: int, number: int) -> None:
        """Writes a whole number that the script does not read."""
        self.tape.append(kind, encode(EntryKind.INT, number))
