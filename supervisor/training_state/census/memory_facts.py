"""Values that are a piece of memory: streams in memory, what `ctypes` and `mmap` give."""

from __future__ import annotations

import ctypes
import io
import json
import mmap
from typing import Any

import xxhash

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
