"""TensorBoard's event files and W&B's local history, read without their packages.

Both are framed records of protocol buffers, of which only a few fields are needed:
tensorflow/core/util/event.proto, summary.proto, tensor.proto; wandb/proto/wandb_internal.proto
(`Record.history`), in LevelDB's log format. Every point is read, where TensorBoard's own reader
keeps a sample of 10,000.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from supervisor.analysis.backtest.log_file import LogFile, Row

WANDB_MAGIC = b":W&B"
_WANDB_HEADER, _BLOCK, _CHUNK_HEAD = 7, 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2


def is_events(file: LogFile) -> bool:
    return ".tfevents." in file.path.name


def is_wandb(file: LogFile) -> bool:
    return file.head.startswith(WANDB_MAGIC)


def read_wandb(file: LogFile) -> Iterator[Row]:
    """Yields each call of `wandb.log` in a run's ``.wandb`` file."""
    file.remarks.unit = "record"
    for number, record in enumerate(_wandb_records(file)):
        row: dict[str, Any] = {}
        try:
            for history in _each(record, 2):
                for item in _each(history, 1):
                    names = [*_each(item, 1), *_each(item, 2)]
                    name = "/".join(bytes(part).decode() for part in names if part)
                    row[name] = json.loads(bytes(next(_each(item, 16), b"null")))
        except (ValueError, IndexError, struct.error) as error:
            file.remarks.broken_line(number, str(error))
        if row:
            yield number, row


def read_events(files: list[LogFile]) -> Iterator[Row]:
    """Yields the scalars of a folder's event files, those of one step together.

    A tag whose steps go back, and another file, begin another pass over the steps: a run that was
    resumed writes a new file.
    """
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    number = -1
    for file in files:
        number += 1
        last: dict[str, int] = {}
        for step, tag, value in _scalars(file):
            if step <= last.get(tag, -1):
                number += 1
                last.clear()
            last[tag] = step
            rows.setdefault((number, step), {"step": step})[tag] = value
    for key in sorted(rows):
        yield key[1], rows.pop(key)


def _scalars(file: LogFile) -> Iterator[tuple[int, str, float]]:
    for number, event in enumerate(_framed(file)):
        try:
            step = next(_each(event, 2), 0)
            for summary in _each(event, 5):
                for value in _each(summary, 1):
                    scalar = _scalar(value)
                    if scalar is not None:
                        yield step, bytes(next(_each(value, 1))).decode(), scalar
        except (ValueError, IndexError, StopIteration, struct.error) as error:
            file.remarks.broken_line(number, f"{error} in {file.path.name}")


def _scalar(value: memoryview) -> float | None:
    for simple in _each(value, 2, _FOUR):
        return float(struct.unpack("<f", simple)[0])
    for tensor in _each(value, 8):  # as TensorFlow 2 writes it
        code = {_FLOAT: "f", _DOUBLE: "d"}.get(next(_each(tensor, 1), 0))
        if code is None or any(len(shape) for shape in _each(tensor, 2)):
            return None
        for content in (*_each(tensor, 4), *_each(tensor, 5 if code == "f" else 6)):
            return float(struct.unpack(f"<{code}", content)[0])
    return None


def _framed(file: LogFile) -> Iterator[memoryview]:
    """The records of TFRecord's format: length, its checksum, data, their checksum."""
    rest, count = b"", 0
    file.remarks.unit = "record"
    for piece in file.pieces():
        rest += piece
        start = 0
        while start + 12 <= len(rest):
            end = start + 16 + int.from_bytes(rest[start : start + 8], "little")
            if end > len(rest):
                break
            yield memoryview(rest)[start + 12 : end - 4]
            start, count = end, count + 1
        rest = rest[start:]
    _tell_rest(file, count, len(rest))


def _wandb_records(file: LogFile) -> Iterator[memoryview]:
    data = b"".join(file.pieces())
    begin = at = _WANDB_HEADER
    record, count = b"", 0
    while at + _CHUNK_HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _CHUNK_HEAD:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        begin = at + _CHUNK_HEAD
        at = begin + length
        if at > len(data):
            break
        record = data[begin:at] if kind in (_FULL, _FIRST) else record + data[begin:at]
        if kind in (_FULL, _LAST):
            count += 1
            yield memoryview(record)
    _tell_rest(file, count, len(data) - begin if at > len(data) else 0)


def _tell_rest(file: LogFile, number: int, size: int) -> None:
    if size:
        file.remarks.broken_line(number, f"{file.path.name} ends in the middle of it")


def _each(message: memoryview, field: int, wire: int | None = None) -> Iterator[Any]:
    """The values of one field of a protocol buffer: whole numbers or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: Any
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _BYTES:
                length, at = _varint(message, at)
            elif kind in (_EIGHT, _FOUR):
                length = 8 if kind == _EIGHT else 4
            else:
                raise ValueError(f"field of kind {kind}")
            if at + length > len(message):
                raise ValueError("a field is longer than its record")
            value, at = message[at : at + length], at + length
        if key >> 3 == field and wire in (None, kind):
            yield value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
