"""Turns a JSON object into a record whose fields have their types, or names the wrong one."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

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
