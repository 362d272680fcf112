"""What functions keep: defaults, variables around them, arguments given before."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from supervisor.training_state.census.frame_variables import FrameVariables, held_by
from supervisor.training_state.census.inside_c_objects import returned_before
from supervisor.training_state.census.left_out import (
    is_for_readers,
    is_of_the_process,
    is_pythons_own,
)
from supervisor.training_state.census.place import Place, write_cell, write_item
from supervisor.training_state.census.python_iterators import ITERATORS

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
