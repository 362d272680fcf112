"""What the loops and `with` blocks of a function hold while no variable leads there: a generator
that is called in the loop's own line, `zip((x - mean).split(16))`, `with averaged_weights(model):`.

Python keeps iterators and context managers on the function's stack, which it shows to nobody. The
memory of the frame is read as plain numbers, and only those count that are the address of an object
that the garbage collector knows; nothing is followed that might not be one. The layout is CPython's
(Include/internal/pycore_frame.h, pycore_interpframe_structs.h): fields, variables, stack.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType, MappingProxyType, MethodType
from typing import Any

import numpy as np
import torch

from supervisor.training_state.census.reach import Reach
from supervisor.worker.ground.unheld_values import blocks_around

_VALUES = (torch.Tensor, np.ndarray)
_EXITS = ("__exit__", "__aexit__")
_WORD = ctypes.sizeof(ctypes.c_size_t)
_TO_FRAME = 3 * _WORD
"""From the begin of a frame object to the address of the interpreter's frame, from Python 3.11 on;
before, the frame object itself holds the stack."""
_FIELDS = 10 if sys.version_info >= (3, 14) else 9
"""Of the interpreter's frame, before its variables."""
_TAGS = 7
"""Bits of an address in which Python 3.14 keeps a mark; objects lie at multiples of 16."""


def held_by_blocks(
    frames: Sequence[tuple[str, FrameType]], variables: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Returns function and number of the block → each iterator and each context manager that leads
    to tensors or arrays to which no variable leads; it cannot be written.

    Called in the thread of the functions. Goes through all objects that Python knows.

    Args:
        frames: name and frame of functions that are under way.
        variables: name → variables of the script.
    """
    stacks = [(name, _stack(frame), blocks_around(frame)) for name, frame in frames]
    wanted = {word for _, words, _ in stacks for word in words}
    known = {id(one): one for one in gc.get_objects() if id(one) in wanted}
    iterators = {word: one for word, one in known.items() if hasattr(type(one), "__next__")}
    managers = {word: left for word, one in known.items() if (left := _left_by(one)) is not None}
    reached = _objects(Reach(variables))
    found: dict[str, Any] = {}
    for name, words, blocks in stacks:
        for kind, objects in (("", iterators), ("with ", managers)):
            count = None if blocks is None else blocks[kind != ""]
            for number, word in enumerate([word for word in words if word in objects][:count]):
                held = objects[word]
                if id(held) not in reached and _leads_to_values(held, reached):
                    found[f"{name} {kind}{number}"] = held
    return MappingProxyType(found)


def _left_by(value: Any) -> Any:
    """The context manager that a function will leave by `value`, which lies on its stack; None for
    other values."""
    if type(value) is MethodType:
        return value.__self__ if value.__name__ in _EXITS else None
    is_there = sys.version_info >= (3, 14) and hasattr(type(value), "__exit__")
    return value if is_there else None


def _leads_to_values(value: Any, reached: Mapping[int, Any]) -> bool:
    below = _objects(Reach({"": {"": value}}))
    return any(isinstance(below[key], _VALUES) for key in below.keys() - reached.keys())


def _stack(frame: FrameType) -> list[int]:
    """Returns the words of a function's stack, the oldest first; what lies above its top is old."""
    size = frame.f_code.co_stacksize
    if sys.version_info < (3, 11):
        end = id(frame) + sys.getsizeof(frame)
    else:
        begin = ctypes.c_size_t.from_address(id(frame) + _TO_FRAME).value
        end = begin + (_FIELDS + _variable_count(frame.f_code) + size) * _WORD
    return [word & ~_TAGS for word in (ctypes.c_size_t * size).from_address(end - size * _WORD)]


def _variable_count(code: CodeType) -> int:
    return len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)


def _objects(reach: Reach) -> dict[int, Any]:
    for _ in reach:
        pass
    return reach.objects
