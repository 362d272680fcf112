"""Pieces of memory are told by their content, and written back in place."""

from __future__ import annotations

import ctypes
import io
import mmap
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.training_state.script_state.single_values import (
    KEPT_BYTES,
    is_memory,
    memory_fact,
    put_memory_back,
)


class Count(ctypes.Structure):
    _fields_ = [("calls", ctypes.c_int), ("mean", ctypes.c_double)]


class Named(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p)]


def _mapped() -> mmap.mmap:
    found = mmap.mmap(-1, 32)
    found[3:5] = b"ab"
    found.seek(7)
    return found


MAKE: dict[str, Callable[[], Any]] = {
    "a text": lambda: io.StringIO("one\ntwo"),
    "bytes": lambda: io.BytesIO(b"one"),
    "a number of C": lambda: ctypes.c_double(0.5),
    "a row of C": lambda: (ctypes.c_int * 3)(1, 2, 3),
    "a structure": lambda: Count(3, 0.25),
    "a mapping": _mapped,
}
OTHER: dict[str, Callable[[], Any]] = {
    "a text": lambda: io.StringIO("another, longer one"),
    "bytes": io.BytesIO,
    "a number of C": ctypes.c_double,
    "a row of C": ctypes.c_int * 3,
    "a structure": Count,
    "a mapping": lambda: mmap.mmap(-1, 32),
}


@pytest.mark.parametrize("kind", MAKE)
def test_the_content_comes_back_in_place(kind: str) -> None:
    fact, live = memory_fact(MAKE[kind]()), OTHER[kind]()

    assert memory_fact(live) != fact
    assert put_memory_back(live, fact)
    assert memory_fact(live) == fact


def test_what_is_long_is_told_by_a_checksum_alone() -> None:
    fact, live = memory_fact(io.BytesIO(bytes(KEPT_BYTES + 1))), io.BytesIO()

    assert not put_memory_back(live, fact)
    assert memory_fact(io.BytesIO(bytes(KEPT_BYTES) + b"1")) != fact


def test_addresses_are_no_content() -> None:
    assert not is_memory(Named(b"one"))
    assert not is_memory(ctypes.pointer(ctypes.c_int(3)))
    assert not is_memory((ctypes.c_char_p * 2)())


def test_another_kind_is_not_written() -> None:
    assert not put_memory_back(io.StringIO(), memory_fact(io.BytesIO(b"one")))
    assert not put_memory_back(ctypes.c_float(), memory_fact(ctypes.c_double(1.0)))
