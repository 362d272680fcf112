"""JSON in files: lines that several processes append to, and records."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from supervisor.errors import RunDirectoryError
from supervisor.records import plain
from supervisor.storage.files.private_files import make_private, own_os_open

T = TypeVar("T")

LARGEST_INT = 2**63 - 1
"""The largest step, process number or count: numpy and the flight recorder hold 64 bits."""

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def build_record(kind: type[T], value: Any) -> T:
    """Returns the record of dataclass `kind` that `value`, from a JSON file, describes.

    Unknown fields are ignored; missing ones take their default. A field may list its allowed
    values in its metadata, under ``one_of``.

    Raises:
        ValueError: `value` is no object, or a field has the wrong type: which, and what it holds.
    """
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {_shown(value)}")
    hints = typing.get_type_hints(kind)
    known = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in value:
            item = _read(value[field.name], hints[field.name], field.name)
            choices = field.metadata.get("one_of")
            if choices is not None and item not in choices:
                raise ValueError(f"{field.name}: {_shown(item)} is none of {', '.join(choices)}")
            known[field.name] = item
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{field.name} is missing")
    return kind(**known)


def _read(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _read_union(value, typing.get_args(hint), where)
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, got {_shown(value)}")
        (item_hint, *_) = typing.get_args(hint)
        items = [_read(item, item_hint, f"{where}[{n}]") for n, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object, got {_shown(value)}")
        item_hint = typing.get_args(hint)[1]
        return {key: _read(item, item_hint, f"{where}.{key}") for key, item in value.items()}
    return _read_plain(value, hint, where)


def _read_union(value: Any, hints: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    (hint, *_) = [hint for hint in hints if hint is not type(None)]
    return _read(value, hint, where)


def _read_plain(value: Any, hint: Any, where: str) -> Any:
    if hint is Path and isinstance(value, str):
        return Path(value)
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where}: expected {_WORDS.get(hint, hint)}, got {_shown(value)}")
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ValueError(f"{where}: {str(value)[:20]}... is too large")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


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


def load_record(path: Path, kind: type[T], *, help_text: str) -> T:
    """Returns the record that was saved at `path`.

    Unknown fields are ignored; missing ones take their defaults.

    Args:
        path: the file.
        kind: the dataclass, whose types are checked (`build_record`).
        help_text: what the user can do when it cannot be read; ends the message.

    Raises:
        RunDirectoryError: the file is missing, unreadable, or no such record.
    """
    try:
        return build_record(kind, parse_json(path.read_bytes()))
    except FileNotFoundError:
        raise RunDirectoryError(f"{path.parent}: no {path.name}: {help_text}") from None
    except OSError as error:
        raise RunDirectoryError(f"{path}: {error.strerror}: {help_text}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise RunDirectoryError(f"{path}: damaged ({error}): {help_text}") from error
