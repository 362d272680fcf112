"""Whether loading has changed anything: a checksum over all that a data set's code can reach.

Only for comparison within one process. What cannot be looked into (a database, an open file, an
iterator) is refused: no proof is better than a wrong one.

Global variables that a piece of code names: what a function can reach beside its arguments.
"""

from __future__ import annotations

import datetime
import dis
import enum
import functools
import io
import itertools
import logging
import marshal
import os
import pathlib
import random
import re
import struct
import threading
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from supervisor.training_state.script_state.inside_containers import SCALARS, is_plain
from supervisor.training_state.script_state.single_values import is_module, own_variables
from supervisor.training_state.tensors import bytes_of
from supervisor.training_state.user_code import is_library_file, is_users_class

_OURS = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True, eq=False)
class NamedGlobals:
    """They are read anew each time: a module's counter is another object when it has counted.

    Attributes:
        code: of a function of the user's.
        variables: of its module.
    """

    code: types.CodeType
    variables: Mapping[str, Any]

    def values(self) -> Iterator[Any]:
        """Yields what the names stand for; of the user's modules all their variables, of others
        those that the code may assign."""
        assigned = _names(self.code, "STORE_ATTR")
        for name in _names(self.code, "LOAD_GLOBAL"):
            value = self.variables.get(name)
            if not is_module(value):
                yield value
                continue
            own = own_variables(value)
            if is_users(own.get("__file__") or "<"):
                yield from _plain_values(own)
            else:
                yield from (own.get(name) for name in assigned)


@functools.lru_cache(maxsize=1024)
def is_users(path: str) -> bool:
    """Whether a file is neither ours nor a library's."""
    return not path.startswith(("<", _OURS)) and not is_library_file(path)


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType, operation: str) -> tuple[str, ...]:
    names = {one.argval for one in dis.get_instructions(code) if one.opname == operation}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(_names(inner, operation))
    return tuple(sorted(names))


def _plain_values(variables: Mapping[str, Any]) -> list[Any]:
    kinds = (types.ModuleType, types.FunctionType, type)
    found = variables.items()
    return [v for k, v in found if not k.startswith("__") and type(v) not in kinds]


OBJECTS = 5_000
"""Objects that are looked at; about 5 ms. A data set that reaches more is seen as a sample."""
LONG = 1_000
"""Of longer containers only a sample is entered: evenly, and where the first fetches have asked for
samples. Which objects they hold is compared of all, and so are 2 MiB of numbers and texts."""
_FEW = 50
"""What lies in longer containers is looked at last: attributes come before samples."""
_NOTHING = marshal.dumps([], 2)
_CONTENT_BYTES = 1 << 20
_UNCHANGING: tuple[type, ...] = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, range, slice),
    *(
        enum.Enum,
        pathlib.PurePath,
        re.Pattern,
        struct.Struct,
        np.dtype,
        np.generic,
        torch.dtype,
        torch.device,
    ),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, logging.Logger),
    *(type(threading.Lock()), type(threading.RLock()), type(Ellipsis), torch.layout),
)
_CACHE: Any = type(functools.lru_cache(len))
_SHOWING: tuple[type, ...] = (
    *(BaseException, threading.local, types.SimpleNamespace, weakref.ref),
    *(int, float, complex, str, bytes),
)
"""Beside `object`: what lies in attributes is all that these keep, or they never change."""
_WITHOUT_ATTRIBUTES = (type, types.ModuleType, NamedGlobals, *_UNCHANGING)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_HEAP_TYPE = 1 << 9


class CannotTell(Exception):
    """There is something in it that cannot be compared; the message says what."""


def fingerprint(roots: Iterable[Any], indices: Iterable[int] = (), *, private: bool = False) -> int:
    """Returns a checksum of the objects and what they reach.

    Args:
        roots: a data set, a collate function, global variables.
        indices: samples of long containers that are looked at in any case.
        private: refuses memory that is shared with other processes.

    Raises:
        CannotTell: one of them hides its state.
    """
    walk = _Walk(indices, private=private)
    for root in roots:
        walk.add(root)
    return walk.result()


class _Walk:
    def __init__(self, indices: Iterable[int], *, private: bool) -> None:
        self._private = private
        self._indices = [i for i in indices if isinstance(i, int)][:LONG]
        self._checksum = xxhash.xxh3_64()
        self._seen: dict[int, Any] = {}
        self._waiting: deque[Any] = deque()
        self._at_last: deque[Any] = deque()
        self._bytes_left = 16 * _CONTENT_BYTES
        self._values_left = 2 * _CONTENT_BYTES

    def add(self, value: Any) -> None:
        self._waiting.append(value)

    def result(self) -> int:
        while (self._waiting or self._at_last) and len(self._seen) < OBJECTS:
            self._look_at((self._waiting or self._at_last).popleft())
        return int(self._checksum.intdigest())

    def _note(self, *words: Any) -> None:
        self._checksum.update(repr(words).encode(errors="replace"))

    def _look_at(self, value: Any) -> None:
        if type(value) in SCALARS:
            self._note(value)
            return
        self._note(id(value))
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._look_at_tensor(value)
        elif isinstance(value, np.ndarray):
            self._look_at_array(value)
        elif isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState)):
            self._look_at_generator(value)
        elif isinstance(value, random.Random):
            self._note(hash(value.getstate()))
        elif isinstance(value, (list, tuple, deque, set, frozenset)):
            self._look_at_items(value)
        elif isinstance(value, dict):
            self._look_at_items(dict.keys(value))
            self._look_at_items(dict.values(value))
            self._waiting.append(getattr(value, "default_factory", None))
        elif not self._look_at_function(value):
            self._look_at_object(value)
        if not isinstance(value, _WITHOUT_ATTRIBUTES):
            self._look_at_attributes(value)

    def _look_at_items(self, items: Collection[Any]) -> None:
        size = len(items)
        self._note(size)
        if self._note_all(items):
            return
        if size > LONG:
            places = {*range(0, size, -(-size // LONG)), *(i for i in self._indices if i < size)}
            known = items if isinstance(items, (list, tuple)) else list(items)
            items = [known[i] for i in sorted(places)]
        (self._waiting if size <= _FEW else self._at_last).extend(items)

    def _note_all(self, items: Collection[Any]) -> bool:
        """Notes all items: by their values where they are numbers and texts, and not too many of
        them; else which objects they are. Returns whether it was by their values."""
        own = items if isinstance(items, (list, tuple, deque, set, frozenset)) else tuple(items)
        if is_plain(own):
            rest = iter(own)
            is_short = len(own) <= LONG and SCALARS.issuperset(map(type, own))
            try:
                while is_short or self._values_left > 0:
                    data = marshal.dumps(list(itertools.islice(rest, LONG)), 2)
                    if data == _NOTHING:
                        return True
                    self._checksum.update(data)
                    self._values_left -= len(data)
            except ValueError:  # something else among many
                pass
        self._checksum.update(np.fromiter(map(id, own), np.uint64, len(own)).tobytes())
        return False

    def _look_at_tensor(self, tensor: torch.Tensor) -> None:
        self._note(tuple(tensor.shape), tensor._version)
        if self._private and tensor.device.type == "cpu" and tensor.is_shared():
            raise CannotTell("a tensor lies in memory that processes share")
        if tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.numel():
            self._note(tensor.data_ptr())
            if self._may_read(tensor.nbytes):
                self._checksum.update(bytes_of(tensor))

    def _look_at_array(self, array: np.ndarray[Any, Any]) -> None:
        self._note(array.shape, array.ctypes.data)
        if self._private and array.flags.writeable and is_mapped(array):
            raise CannotTell("an array lies in memory that processes share")
        if array.dtype.hasobject:
            self._look_at_items(array.reshape(-1).tolist())
        elif array.flags.writeable:  # a mapped file that is only read cannot change
            if array.nbytes > _CONTENT_BYTES and array.ndim:
                rows = max(1, min(LONG, _CONTENT_BYTES * len(array) // array.nbytes))
                places = [*self._indices, *range(0, len(array), -(-len(array) // rows))]
                array = array[[i for i in places if i < len(array)][:rows]]
            if self._may_read(array.nbytes):
                self._checksum.update(np.ascontiguousarray(array).tobytes())

    def _may_read(self, size: int) -> bool:
        if size > min(_CONTENT_BYTES, self._bytes_left):
            return False
        self._bytes_left -= size
        return True

    def _look_at_generator(self, value: Any) -> None:
        if isinstance(value, torch.Generator):
            self._checksum.update(value.get_state().numpy().tobytes())
        elif isinstance(value, np.random.Generator):
            self._note(value.bit_generator.state)
        else:
            self._note(value.get_state(legacy=False))

    def _look_at_function(self, value: Any) -> bool:
        """Returns whether it is a function, a class, or a module, of which nothing is looked at."""
        if isinstance(value, functools.partial):
            self._waiting.extend((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            self._waiting.extend((value.__self__, value.__func__))
        elif isinstance(value, types.BuiltinFunctionType):
            self._waiting.append(value.__self__)  # of a generator's `random`, a list's `append`
        elif isinstance(value, types.FunctionType):
            self._waiting.extend(_kept_by(value))
        elif isinstance(value, _CACHE):  # what it holds is out of sight
            known = value.cache_info()
            self._note(known.currsize, known.misses)
            self._waiting.append(value.__wrapped__)
        elif isinstance(value, NamedGlobals):
            self._waiting.extend(value.values())
        elif isinstance(value, type):
            if is_users_class(value):
                self._waiting.extend(_kept_by_class(value))
        else:
            return isinstance(value, types.ModuleType)
        return True

    def _look_at_object(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, (io.IOBase, Iterator, types.CoroutineType)):
            raise CannotTell(f"a {kind.__name__} goes on from sample to sample")
        if isinstance(value, _UNCHANGING) or str(kind.__module__).split(".")[0] == "pyarrow":
            return
        if isinstance(value, weakref.ref):
            self._waiting.append(value())
        base = _base_in_c(kind)
        shows = issubclass(base, _SHOWING) or (base is object and _has_attributes(value))
        if not shows and kind is not object:
            raise CannotTell(f"a {kind.__module__}.{kind.__qualname__} does not show its state")
        self._waiting.append(kind)

    def _look_at_attributes(self, value: Any) -> None:
        for name, item in list(getattr(value, "__dict__", {}).items()):
            self._note(name)
            self._waiting.append(item)
        names = [name for one in type(value).__mro__ for name in _slots(one)]
        self._waiting.extend(getattr(value, name) for name in names if hasattr(value, name))


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") or any(map(_slots, type(value).__mro__))


def _base_in_c(kind: type) -> type:
    """The nearest base that no class statement made: what keeps more than attributes."""
    return next(
        one
        for one in kind.__mro__
        if not one.__flags__ & _HEAP_TYPE or getattr(one.__new__, "__self__", None) is one
    )


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Whether its memory is not its own: a mapped file, or a buffer of something else."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) or owner.base is None:
            return isinstance(owner, np.memmap)
        owner = owner.base
    return owner.is_shared() if isinstance(owner, torch.Tensor) else not isinstance(owner, bytes)


def _slots(kind: type) -> Iterable[str]:
    names = kind.__dict__.get("__slots__", ())
    return [names] if isinstance(names, str) else [n for n in names if not n.startswith("__")]


def _kept_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function keeps between its calls, or finds beside its arguments."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if is_users(function.__code__.co_filename):
        yield from NamedGlobals(function.__code__, function.__globals__).values()


def _kept_by_class(kind: type) -> Iterator[Any]:
    for one in kind.__mro__:
        if is_users_class(one):
            for name, value in list(vars(one).items()):
                if isinstance(value, (staticmethod, classmethod)):
                    yield value.__func__
                elif isinstance(value, property):
                    yield from (value.fget, value.fset)
                elif isinstance(value, types.FunctionType) or not (
                    name.startswith(("__", "_abc_")) or isinstance(value, _DESCRIPTORS)
                ):
                    yield value
