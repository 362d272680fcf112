"""What objects of C code hold: what the garbage collector is told of, and what a method is of."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from supervisor.training_state.census.left_out import SHOWN
from supervisor.training_state.census.place import Place

TELLS_THE_COLLECTOR = 1 << 14
"""Of a type's flags: `Py_TPFLAGS_HAVE_GC`."""
_WITHOUT_STATE = (
    *(types.FrameType, types.TracebackType, types.CodeType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)
"""Frames are walked where they belong to the script; the others describe a class."""
_ROWS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    list: lambda one: tuple(item for item in one if not isinstance(item, weakref.ref)),
    dict: lambda one: tuple(one.items()),
}
_OF_CACHES = frozenset({"dict", "object", "type", "_lru_list_elem"})
METHODS_IN_C = (types.BuiltinMethodType, types.MethodWrapperType)


def holds_in_c(kind: type) -> bool:
    """Whether objects of a class hold others in C: a data frame's blocks, what waits in a queue."""
    if issubclass(kind, (*SHOWN, *_WITHOUT_STATE)) or not kind.__flags__ & TELLS_THE_COLLECTOR:
        return False
    return any(_is_made_in_c(base) for base in kind.__mro__[:-1])


def _is_made_in_c(kind: type) -> bool:
    """A class that is written in Python has a dictionary for its attributes, or names them; one of
    C that adds no memory to its base, such as `typing.Generic`, holds nothing by itself."""
    adds_memory = kind.__base__ is not None and kind.__basicsize__ > kind.__base__.__basicsize__
    return adds_memory and not kind.__dictoffset__ and "__slots__" not in vars(kind)


def held_in_c(path: str, value: Any) -> Iterator[Place]:
    """The objects that it refers to; classes and modules are not among what it holds.

    Lists and dictionaries are told as tuples: C code relies on what it keeps there, and so nothing
    may be added or taken out. What lies in them is put back in place. Lists of weak references hold
    nothing.
    """
    for number, item in enumerate(gc.get_referents(value)):
        kind = type(item)
        if not issubclass(kind, (type, types.ModuleType)):
            yield Place(f"{path}.holds[{number}]", _ROWS[kind](item) if kind in _ROWS else item)


def returned_before(cache: Any) -> tuple[Any, ...]:
    """What the calls of a function with `functools.lru_cache` had as arguments and results."""
    own = (getattr(cache, "__wrapped__", None), vars(cache))
    found = [one for one in gc.get_referents(cache) if not any(one is other for other in own)]
    without_limit = [value for one in found if type(one) is dict for value in one.values()]
    return tuple(one for one in found + without_limit if type(one).__name__ not in _OF_CACHES)


def of_method_in_c(path: str, method: Any) -> Iterator[Place]:
    """The object whose method it is: `draw = numpy.random.default_rng(0).normal`."""
    owner = method.__self__
    if not issubclass(type(owner), (type, types.ModuleType)):
        yield Place(f"{path}.self", owner)
