"""JSON-lines files that several processes append to, any of which may die while writing."""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.records import plain
from supervisor.storage.files.checked_record import LARGEST_INT
from supervisor.storage.files.originals import own_os_open
from supervisor.storage.files.private_files import make_private


class LineFile:
    """Appends whole lines, one `write` each, to a file opened with O_APPEND.

    A torn line of a dead writer is ended with a newline first. The file is created with the first
    line, mode 0600.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._torn = False

    def append(self, line: bytes) -> None:
        """Appends `line`, which holds no newline.

        Raises:
            OSError: the line was not written, or only in part, which readers ignore.
        """
        if self._fd < 0:
            self._open()
        data = b"\n" + line + b"\n" if self._torn else line + b"\n"
        self._torn = True
        written = os.write(self._fd, data)
        if written < len(data):
            raise OSError(28, f"only {written} of {len(data)} bytes written", str(self.path))
        self._torn = False

    def sync(self) -> None:
        """Flushes every line to disk.

        Raises:
            OSError: the disk refuses.
        """
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Closes the file; a later line opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        make_private(self.path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = own_os_open(self.path, flags, 0o600)
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"


def to_line(value: Mapping[str, Any]) -> bytes:
    """Returns `value` as one line of standard JSON.

    NaN and infinities, which JSON lacks, become the strings "nan", "inf" and "-inf": read a figure
    with ``float(event["value"])``.
    """
    return json.dumps(_json_value(value), allow_nan=False).encode()


def parse_json(data: bytes | str) -> Any:
    """Parses `data`, which may come from a damaged file.

    Raises:
        ValueError: it is no JSON, or a whole number in it has more than 64 bits.
        RecursionError: it is nested too deeply.
    """
    return json.loads(data, parse_int=_bounded_int)


def _bounded_int(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > LARGEST_INT:
        raise ValueError(f"the number {digits[:20]}... is too large")
    return int(digits)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Returns the object on `line`, or None if it is torn, garbage or no object."""
    try:
        value = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON-lines file without torn lines; [] if there is no file.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    parsed = (parse_line(line) for line in data.split(b"\n"))
    return [value for value in parsed if value is not None]


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json_value(item) for item in value]
    if value is None or isinstance(value, (bool, str)):
        return plain(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    known = plain(value)
    if isinstance(known, (Mapping, list)):
        return _json_value(known)
    return known
