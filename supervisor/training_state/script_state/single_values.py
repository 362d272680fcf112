"""Values that the script state reads by a way of their own.

Modules that import what they stand for when an attribute is asked of them.

They are not asked: plain python might import it later, or never.
"""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import decimal
import enum
import fractions
import gc
import io
import itertools
import json
import mmap
import operator
import re
import struct
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import xxhash

from supervisor.unwarned import unwarned

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
"""They have no parts of their own for a script state."""
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


_EMPTY: tuple[Any, ...] = (
    *([], (), "", "ä", b"", bytearray(), range(0), range(1 << 70), array.array("b")),
    *({}, {}.values(), {}.items(), collections.OrderedDict(), set(), collections.deque()),
    *(np.zeros(0), memoryview(b"")),  # the former's asks any sequence for one item after the other
)
_REVERSIBLE: tuple[Any, ...] = ([], {}, {}.items(), {}.values(), collections.deque())
_OF_ITERTOOLS = tuple(own for own in vars(itertools).values() if isinstance(own, type))
_COUNTED = type(struct.iter_unpack("B", b""))
"""It tells how many items are left, and nothing else."""
ITERATORS: tuple[type, ...] = (
    _COUNTED,
    *(type(iter(empty)) for empty in _EMPTY),
    *(enumerate, zip, map, filter, reversed, type(iter(int, 1))),
    *(type(reversed(empty)) for empty in _REVERSIBLE),
    *_OF_ITERTOOLS,
)
_KNOWN = {*ITERATORS, types.GeneratorType, np.nditer, np.flatiter}
_SCANNER = type(re.compile("").scanner(""))  # type: ignore[attr-defined]
_WARN = _OF_ITERTOOLS if (3, 12) <= sys.version_info < (3, 14) else ()
"""That they will not tell from Python 3.14 on."""
_SEEN_WHOLE = tuple(vars(itertools)[n] for n in ("pairwise", "batched") if hasattr(itertools, n))
"""They do not tell where they stand, but the collector is told of all that they go on from."""


def is_iterator(kind: type) -> bool:
    """Whether it is one of Python's own iterators, which know where they stand."""
    return kind in ITERATORS


def position(iterator: Any) -> list[Any]:
    """What an iterator of Python's own goes over, and where it stands; it is not moved.

    Raises:
        TypeError: this version of Python cannot tell.
    """
    if type(iterator) in _SEEN_WHOLE:
        return gc.get_referents(iterator)
    if type(iterator) is _COUNTED:
        return [operator.length_hint(iterator)]
    found = unwarned(iterator.__reduce__) if type(iterator) in _WARN else iterator.__reduce__()
    return [*found[1], *found[2:3]]


def hides_its_place(kind: type) -> bool:
    """Whether it is an iterator of C code that nobody can ask where it stands: that of
    `re.finditer`, the cursor of a database, a generator of Cython."""
    if kind is _SCANNER:
        return True
    is_in_c = isinstance(getattr(kind, "__next__", None), types.WrapperDescriptorType)
    return is_in_c and kind not in _KNOWN and not issubclass(kind, io.IOBase)


KEPT_BYTES = 16_384
"""Longer ones are compared by checksum, and cannot be put back."""
_MOST_COMPARED = 1 << 26
"""Of a mapping; of a larger one the beginning counts."""
_BEGIN = "memory of a "
_C_DATA = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)
_STREAMS = (io.StringIO, io.BytesIO)
_POINTERS = frozenset("PzZO")
"""Codes of simple types that hold an address, which is another one in each process."""


def is_memory(value: Any) -> bool:
    """Whether `memory_fact` tells what it is."""
    if isinstance(value, _C_DATA):
        return not _has_pointers(type(value))
    return isinstance(value, (*_STREAMS, mmap.mmap))


def memory_fact(value: Any) -> str:
    """Returns the fact of such a value: where it stands, and its content or a checksum of it."""
    content = _content(value)
    data = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    at = 0 if isinstance(value, _C_DATA) else value.tell()
    begin = f"{_BEGIN}{type(value).__name__} of {len(data)} at {at}"
    if len(data) > KEPT_BYTES:
        return f"{begin} {xxhash.xxh3_64_hexdigest(data)}"
    return f"{begin} {json.dumps(data.hex())}"


def put_memory_back(value: Any, fact: str) -> bool:
    """Writes what a fact holds into a live value; False where it is none of these."""
    if not is_memory(value) or not fact.startswith(f"{_BEGIN}{type(value).__name__} of "):
        return False
    head, _, text = fact.rpartition(" ")
    if not text.startswith('"'):
        return False
    data, at = bytes.fromhex(json.loads(text)), int(head.rpartition(" ")[2])
    if isinstance(value, _C_DATA):
        if len(data) != ctypes.sizeof(value):
            return False
        ctypes.memmove(ctypes.addressof(value), data, len(data))
        return True
    if isinstance(value, mmap.mmap):
        if len(data) != len(value):
            return False
        value[:] = data
    else:
        is_text = isinstance(value, io.StringIO)
        value.seek(0)
        value.truncate()
        value.write(data.decode(errors="surrogatepass") if is_text else data)
    value.seek(at)
    return True


def _content(value: Any) -> Any:
    if isinstance(value, _STREAMS):
        return value.getvalue()
    if isinstance(value, mmap.mmap):
        return value[:_MOST_COMPARED]
    return ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))


def _has_pointers(kind: Any) -> bool:
    if issubclass(kind, ctypes._SimpleCData):
        return kind._type_ in _POINTERS
    if issubclass(kind, ctypes.Array):
        return _has_pointers(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        fields = [field for base in kind.__mro__ for field in vars(base).get("_fields_", ())]
        return any(_has_pointers(field[1]) for field in fields)
    return True


def is_module(value: Any) -> TypeGuard[types.ModuleType]:
    """Whether a value is a module; `isinstance` would ask for its ``__class__``."""
    return issubclass(type(value), types.ModuleType)


def own_variables(module: types.ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return found
