"""What lies in objects and classes of the script and of libraries.

The variables of a function that is being executed. What objects of C code hold: what the garbage
collector is told of, and what a method is of. What functions keep: defaults, variables around them,
arguments given before.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from supervisor.training_state.script_state.place import (
    SHOWN,
    Place,
    is_for_readers,
    is_of_the_process,
    is_pythons_own,
    write_attribute,
    write_cell,
    write_class,
    write_context,
    write_item,
)
from supervisor.training_state.script_state.single_values import ITERATORS, position
from supervisor.training_state.user_code import is_users_class

_CONNECTIONS = frozenset({"_IterableDataset__hffs_cache"})
"""Attributes that hold file systems of Hugging Face by the process's number: no state."""
_MISSING = object()


def attributes(path: str, value: Any) -> Iterator[Place]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    for name, item in list(own.items()):
        if not is_pythons_own(name) and name not in _CONNECTIONS:
            yield Place(f"{path}.{name}", item, value, name, write_attribute)
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot = vars(kind).get(name)
            if isinstance(slot, types.MemberDescriptorType):
                item = _slot(slot, value)
                if item is not _MISSING:
                    yield Place(f"{path}.{name}", item, value, name, write_attribute)


def _slot(slot: types.MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # not assigned yet
        return _MISSING


def of_class(path: str, kind: type) -> Iterator[Place]:
    if is_users_class(kind):
        for name, item in list(vars(kind).items()):
            if not is_pythons_own(name) and not isinstance(item, types.MemberDescriptorType):
                yield Place(f"{path}.{name}", item, kind, name, write_class)


def of_thread(path: str, local: threading.local) -> Iterator[Place]:
    own = vars(local)
    for name, item in list(own.items()):
        yield Place(f"{path}.{name}", item, own, name, write_item)


def of_context(path: str, variable: contextvars.ContextVar[Any]) -> Iterator[Place]:
    value = variable.get(_MISSING)
    if value is not _MISSING:
        yield Place(f"{path}.value", value, variable, "", write_context)


def of_view(path: str, view: memoryview) -> Iterator[Place]:
    yield Place(f"{path}.obj", view.obj)


def of_iterator(path: str, value: Any) -> Iterator[Place]:
    for number, item in enumerate(position(value)):
        yield Place(f"{path}.position[{number}]", item)


FRAMES: dict[type, str] = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
"""Functions that wait → the attribute that is their frame."""


class FrameVariables(Mapping[str, Any]):
    """The variables of a function that is being executed, or of a generator that waits.

    A value that is assigned is what the function goes on with: in Python before 3.13 by the
    interpreter's own call for debuggers, from 3.13 on by PEP 667.
    """

    def __init__(self, frame: types.FrameType) -> None:
        self._frame = frame
        self._variables = frame.f_locals

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._variables))

    def __len__(self) -> int:
        return len(self._variables)

    def __setitem__(self, name: str, value: Any) -> None:
        variables = self._variables = self._frame.f_locals  # as the function has them now
        variables[name] = value
        if sys.version_info < (3, 13) and variables is not self._frame.f_globals:
            import ctypes

            to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
            to_fast(ctypes.py_object(self._frame), ctypes.c_int(0))


def held_by(generator: Any) -> list[Any]:
    """Returns what a generator or coroutine that waits refers to: values of variables, iterators of
    its loops, the outer ones first, and parts of its statement."""
    frame = getattr(generator, FRAMES[type(generator)])
    if frame is None or sys.version_info >= (3, 11):
        return gc.get_referents(generator)
    return gc.get_referents(frame)  # before, the frame is an object of its own


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


_PARTS = (torch.Tensor, np.ndarray, list, tuple)
CACHE: type = type(functools.lru_cache(len))


def of_variables(name: str, variables: Mapping[str, Any]) -> Iterator[Place]:
    write = write_item if hasattr(variables, "__setitem__") else None
    for key in list(variables):
        if isinstance(key, str) and not is_pythons_own(key):
            yield Place(f"{name}.{key}", variables[key], variables, key, write)


def of_module_object(path: str, module: types.ModuleType) -> Iterator[Place]:
    """The variables of a module that Python does not know by its name: the script executed it."""
    if type(module) is types.ModuleType and sys.modules.get(module.__name__) is not module:
        yield from of_variables(path, vars(module))


def of_function(path: str, function: types.FunctionType) -> Iterator[Place]:
    """Defaults, and the variables around it."""
    if is_of_the_process(function) or is_for_readers(function):
        return
    for number, item in enumerate(function.__defaults__ or ()):
        yield Place(f"{path}.defaults[{number}]", item)
    for name, item in list((function.__kwdefaults__ or {}).items()):
        yield Place(f"{path}.defaults[{name!r}]", item, function.__kwdefaults__, name, write_item)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Place(f"{path}.{name}", cell.cell_contents, cell, name, write_cell)
        except ValueError:  # not assigned yet
            continue
    for name, item in list(vars(function).items()):
        yield Place(f"{path}.{name}", item, vars(function), name, write_item)


def of_method(path: str, method: types.MethodType) -> Iterator[Place]:
    yield Place(f"{path}.self", method.__self__)
    yield Place(f"{path}.function", method.__func__)


def of_wrapper(path: str, value: Any) -> Iterator[Place]:
    """Of a static method, or one of the class."""
    yield Place(f"{path}.function", value.__func__)


def of_partial(path: str, value: functools.partial[Any]) -> Iterator[Place]:
    yield Place(f"{path}.func", value.func)
    yield Place(f"{path}.args", value.args)
    yield Place(f"{path}.keywords", value.keywords)


def of_generator(path: str, value: types.GeneratorType[Any, Any, Any]) -> Iterator[Place]:
    frame = value.gi_frame
    if frame is not None:
        yield from of_variables(path, FrameVariables(frame))
        yield Place(f"{path}.yield_from", value.gi_yieldfrom)
        yield from of_stack(path, value)


def of_async_generator(path: str, value: types.AsyncGeneratorType[Any, Any]) -> Iterator[Place]:
    frame = value.ag_frame
    if frame is not None and not value.ag_running:
        yield from of_variables(path, FrameVariables(frame))
        yield Place(f"{path}.await", value.ag_await)
        yield from of_stack(path, value)


def of_cache(path: str, cache: Any) -> Iterator[Place]:
    """The function, and what it has returned; `facts` tells how often it was called."""
    yield Place(f"{path}.__wrapped__", getattr(cache, "__wrapped__", None))
    yield Place(f"{path}.returned", returned_before(cache))


def of_stack(path: str, value: Any) -> Iterator[Place]:
    """What a generator or coroutine that waits keeps while no variable leads there: iterators of
    its loops, and parts of the statement in which it waits (`mean = 0.9 * mean + (yield)`)."""
    held = held_by(value)
    for number, iterator in enumerate(one for one in held if type(one) in ITERATORS):
        yield Place(f"{path}.loops[{number}]", iterator)
    for number, part in enumerate(one for one in held if isinstance(one, _PARTS)):
        yield Place(f"{path}.parts[{number}]", part)


def is_cache(kind: type) -> bool:
    """Whether it is that of a function with `functools.lru_cache`."""
    return issubclass(kind, CACHE)
