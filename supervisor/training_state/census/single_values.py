"""Values of Python's library that are no numbers or texts, but can be written as such."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import json
import uuid
from collections.abc import Callable
from typing import Any

import xxhash

_KEPT_BYTES = 8_192
"""Of a `bytearray` or an `array.array`; a longer one is compared by checksum."""
_WRITTEN: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Decimal": (decimal.Decimal, str, decimal.Decimal),
    "Fraction": (fractions.Fraction, str, fractions.Fraction),
    "range": (range, lambda one: [one.start, one.stop, one.step], lambda parts: range(*parts)),
    "datetime": (datetime.datetime, str, datetime.datetime.fromisoformat),
    "date": (datetime.date, str, datetime.date.fromisoformat),
    "time": (datetime.time, str, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda one: [one.days, one.seconds, one.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "array": (
        array.array,
        lambda one: [one.typecode, one.tobytes().hex()],
        lambda parts: array.array(parts[0], bytes.fromhex(parts[1])),
    ),
    "UUID": (uuid.UUID, str, uuid.UUID),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
}
"""Name of a type → it, its values as JSON, and the way back."""
SINGLE_KINDS = frozenset(_WRITTEN)
SINGLE: tuple[type, ...] = (
    *(kind for kind, _, _ in _WRITTEN.values()),
    *(enum.Enum, slice),
)
"""They have no parts of their own for a census."""
_MEMBER = "member of "


def single(value: Any) -> str:
    """Returns the fact of a value of one of the types `SINGLE`."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return f"{_MEMBER}{kind.__module__}.{kind.__qualname__} {value.name}"
    if isinstance(value, (bytearray, array.array)) and len(value) > _KEPT_BYTES:
        return f"{kind.__name__} of {len(value)} {xxhash.xxh3_64_hexdigest(bytes(value))}"
    if kind.__name__ in _WRITTEN and kind is _WRITTEN[kind.__name__][0]:
        return f"= {json.dumps({'': kind.__name__, 'is': _WRITTEN[kind.__name__][1](value)})}"
    return f"{kind.__name__} {value!r}"


def single_of(kind: str, form: Any) -> Any:
    """Returns the value that `single` has written, from its name and its JSON."""
    return _WRITTEN[kind][2](form)


def member_of(fact: str, live: Any) -> enum.Enum | None:
    """Returns the member of the class of `live` that a fact tells of; None if it tells of none."""
    kind = type(live)
    begin = f"{_MEMBER}{kind.__module__}.{kind.__qualname__} "
    if not isinstance(live, enum.Enum) or not fact.startswith(begin):
        return None
    found: enum.Enum = kind[fact.removeprefix(begin)]
    return found
