"""Everything that a script's variables lead to, each object once, by its shortest path.

Containers, objects of the script and of libraries, modules, closures, generators and iterators are
entered; torch's own objects only where they belong to data loading, schedules and DDP's hooks.
"""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import gc
import io
import itertools
import pathlib
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from supervisor.training_state.census.plain_containers import SCALARS, is_plain
from supervisor.training_state.census.single_values import SINGLE
from supervisor.training_state.user_code import is_users_class

COUNT_LIMIT = 50_000
"""Objects that are entered; at 1 to 2 us each a tenth of a second."""
LONG = 1_000
"""Of longer containers of objects only the ends are entered: what is new lies there."""
_FIRST, _LAST = 100, 400
_ADDRESS = 1 << 40
"""Whole numbers beyond are taken for addresses where they are keys: they differ in each process."""

_EMPTY: tuple[Any, ...] = ([], (), "", range(0), {}, {}.values(), {}.items(), set())
_ITERATORS: tuple[type, ...] = (
    *(type(iter(empty)) for empty in _EMPTY),
    *(enumerate, zip, map, filter, reversed, type(reversed([]))),
    *(own for own in vars(itertools).values() if isinstance(own, type)),
)
_OWN_OF_THE_PROCESS = frozenset(
    {
        *("_ctypes", "_io", "_thread", "_weakref", "asyncio", "concurrent", "ctypes", "importlib"),
        *("io", "logging", "multiprocessing", "queue", "select", "socket", "sqlite3", "ssl"),
        *("rich", "subprocess", "supervisor", "tempfile", "threading", "weakref"),
    }
)
"""Modules whose objects, and those derived from them, belong to this process: locks, files,
threads, queues between them, and what draws on its terminal."""
_CONNECTIONS = frozenset({"_IterableDataset__hffs_cache"})
"""Attributes that hold file systems of Hugging Face by the process's number: no state."""
_OF_TORCH = (
    *("torch.utils.data.", "torch.optim.", "torch.amp.", "torch.cuda.amp."),
    "torch.distributed.algorithms.",  # states of communication hooks, and averagers' counts
)
_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_load_state_dict_pre_hooks"),
)
_PARTS_OF_MODULE = frozenset(vars(nn.Module()))
_OPTIMIZERS_OWN = frozenset({"defaults", "param_groups", "state"})
_SHOWN: tuple[type, ...] = (
    *(torch.Tensor, np.ndarray, np.generic, torch.dtype, torch.device, torch.layout, np.dtype),
    *(torch.Generator, np.random.Generator, np.random.RandomState, random.Random),
    *(types.ModuleType, types.BuiltinFunctionType, types.BuiltinMethodType, pathlib.PurePath),
    *(io.StringIO, io.BytesIO, int, float, complex, str, bytes, *SINGLE),
)
"""Not entered, but `facts.fact_of` tells what they are; functions in C and modules keep nothing."""
_CACHE: type = type(functools.lru_cache(len))
_CHANGEABLE = (bytearray, array.array)
_CALLED_BY_NAME: tuple[type, ...] = (
    *(int, float, complex, str, bytes, *(one for one in SINGLE if one not in _CHANGEABLE)),
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, np.generic),
    *(torch.dtype, torch.device, torch.layout, np.dtype, pathlib.PurePath),
)
"""Known by their names or values: whether two are one object tells nothing."""
_VALUES = (tuple, frozenset)
_LOADERS_PLACE = ("_dataset", "_index_sampler", "_sampler_iter", "_num_yielded", "_rcvd_idx")
_MISSING = object()
_Entry: TypeAlias = Callable[[str, Any], Iterable["Place"]]


class Place:
    """Where a value lies.

    Attributes:
        path: as a person would write it, `main.trainer.callbacks[0].best`.
        value: what lies there.
        is_plain: it is a container of numbers and strings alone, and was not entered.
        same_as: path of the nearer place where this very object lies; empty at its first place.
    """

    __slots__ = ("_holder", "_key", "_write", "is_plain", "path", "same_as", "value")

    def __init__(
        self,
        path: str,
        value: Any,
        holder: Any = None,
        key: Any = None,
        write: Callable[[Any, Any, Any], None] | None = None,
    ) -> None:
        self.path = path
        self.value = value
        self.is_plain = False
        self.same_as = ""
        self._holder = holder
        self._key = key
        self._write = write

    @property
    def replace(self) -> Callable[[Any], None] | None:
        """Puts another value here; None where that is impossible (a tuple's item)."""
        if self._write is None:
            return None
        return functools.partial(self._write, self._holder, self._key)


class Reach:
    """A walk over what variables lead to; iterating it yields every object, nearest place first.

    Args:
        frames: name → variables of the script's functions and modules; variables that can be
            written have `__setitem__`.
        enter: paths of containers that are entered although they are plain.
        at_last: more of them, by which nothing is named that `frames` lead to as well.
        all_places: yields the further places of an object, too (`Place.same_as`).

    Attributes:
        objects: every object that was met, by its id; kept so that no id comes twice.
        out_of_reach: objects that hide their state, and parts of long containers.
        is_whole: False where `COUNT_LIMIT` ended the walk.
    """

    def __init__(
        self,
        frames: Mapping[str, Mapping[str, Any]],
        enter: Collection[str] = (),
        *,
        at_last: Mapping[str, Mapping[str, Any]] | None = None,
        all_places: bool = False,
    ) -> None:
        self.objects: dict[int, Any] = {}
        self._paths: dict[int, str] | None = {} if all_places else None
        self.out_of_reach = 0
        self.is_whole = True
        self._frames = frames
        self._at_last = at_last or {}
        self._enter = enter
        self._waiting: collections.deque[Place] = collections.deque()
        self._sets: collections.deque[Place] = collections.deque()  # their order is no good name
        self._entries: dict[type, _Entry | None] = {}

    def __iter__(self) -> Iterator[Place]:
        for name, variables in self._frames.items():
            yield from self._new(_variables(name, variables))
        yield from self._below()
        for name, variables in self._at_last.items():
            yield from self._new(_variables(name, variables))
        yield from self._below()

    def _below(self) -> Iterator[Place]:
        while self._waiting or self._sets:
            if len(self.objects) > COUNT_LIMIT:
                self.is_whole = False
                self.out_of_reach += len(self._waiting) + len(self._sets)
                return
            place = (self._waiting or self._sets).popleft()
            yield from self._new(self._inside(place))

    def _new(self, found: Iterable[Place]) -> Iterator[Place]:
        objects, waiting = self.objects, self._waiting
        for place in found:
            value = place.value
            kind = type(value)
            if kind not in SCALARS:
                if id(value) in objects:
                    if self._paths is None:
                        continue
                    if kind in _VALUES and is_plain(value):  # equal ones are often one object
                        place.is_plain = True
                    elif not issubclass(kind, _CALLED_BY_NAME):
                        place.same_as = self._paths[id(value)]
                    yield place
                    continue
                objects[id(value)] = value
                if self._paths is not None:
                    self._paths[id(value)] = place.path
                if is_plain(value) and place.path not in self._enter:
                    place.is_plain = True
                elif (entry := self._entry(kind)) is not None:
                    (self._sets if entry is _members else waiting).append(place)
                elif not issubclass(kind, _SHOWN):
                    self.out_of_reach += 1
            yield place

    def _inside(self, place: Place) -> list[Place]:
        value = place.value
        enter = self._entries[type(value)]
        assert enter is not None
        try:
            if enter in (_items, _values, _members) and len(value) > LONG:
                self.out_of_reach += len(value) - _FIRST - _LAST
            return list(enter(place.path, value))
        except Exception:  # the user's own properties, or an iterator that cannot be copied
            self.out_of_reach += 1
            return []

    def _entry(self, kind: type) -> _Entry | None:
        try:
            return self._entries[kind]
        except KeyError:
            entry = self._entries[kind] = _find_entry(kind)
            return entry


def _find_entry(kind: type) -> _Entry | None:
    if issubclass(kind, (torch.Tensor, np.generic, types.ModuleType, *SINGLE)):
        return None
    for kinds, entry in (
        ((list, tuple, collections.deque), _items),
        ((dict,), _values),
        ((set, frozenset), _members),
        ((nn.Module,), _parts),
        ((torch.optim.Optimizer,), _beside_state),
        ((_MultiProcessingDataLoaderIter,), _of_loader),
        ((types.FunctionType,), _kept_by_function),
        ((types.MethodType,), _of_method),
        ((functools.partial,), _of_partial),
        ((types.GeneratorType,), _of_generator),
        ((np.ndarray,), _of_array),
        ((memoryview,), _of_view),
        ((contextvars.ContextVar,), _of_context),
        ((threading.local,), _of_thread),
        ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary), _of_weak),
        ((_CACHE,), _of_cache),
        ((type,), _of_class),
    ):
        if issubclass(kind, kinds):
            return entry
    if kind in _ITERATORS:
        return _of_iterator
    if issubclass(kind, threading.Thread) or not _is_entered(kind):
        return None
    if kind.__dictoffset__ or any("__slots__" in vars(one) for one in kind.__mro__):
        return _attributes
    return None


def _items(path: str, value: Any) -> Iterator[Place]:
    write = None if isinstance(value, tuple) else _write_item
    base = next(one for one in (list, tuple, collections.deque) if isinstance(value, one))
    size = base.__len__(value)  # a derived class may have another idea
    numbers: Iterable[int] = range(size)
    if size > LONG:
        numbers = (*range(_FIRST), *range(size - _LAST, size))
    for index in numbers:
        yield Place(f"{path}[{index}]", base.__getitem__(value, index), value, index, write)
    yield from _attributes(path, value)


def _values(path: str, value: dict[Any, Any]) -> Iterator[Place]:
    for number, (key, item) in _ends(list(dict.items(value))):
        name = key_name(key, number)
        if name.endswith(f" #{number}"):
            yield Place(f"{path}.keys[{number}]", key)
        yield Place(f"{path}[{name}]", item, value, key, _write_item)
    yield from _attributes(path, value)


def _members(path: str, value: Any) -> Iterator[Place]:
    """In the order in which a loop over the set meets them."""
    for number, item in _ends(list(value)):
        yield Place(f"{path}[{number}]", item)
    yield from _attributes(path, value)


def _ends(items: list[Any]) -> list[tuple[int, Any]]:
    numbered = list(enumerate(items))
    return numbered if len(numbered) <= LONG else [*numbered[:_FIRST], *numbered[-_LAST:]]


def key_name(key: Any, number: int) -> str:
    """What a key is called in a path: itself, or its number where it is another in each process."""
    kind = type(key)
    if kind is int:
        return str(key) if -_ADDRESS < key < _ADDRESS else f"#{number}"
    if kind in SCALARS or (kind is tuple and SCALARS.issuperset(map(type, key))):
        return repr(key)
    return f"{kind.__name__} #{number}"


def _variables(name: str, variables: Mapping[str, Any]) -> Iterator[Place]:
    write = _write_item if hasattr(variables, "__setitem__") else None
    for key in list(variables):
        if isinstance(key, str) and not key.startswith("__"):
            yield Place(f"{name}.{key}", variables[key], variables, key, write)


def _is_entered(kind: type) -> bool:
    module = getattr(kind, "__module__", None)
    if isinstance(module, str) and module.startswith("torch."):
        return f"{module}.".startswith(_OF_TORCH)
    return not any(_is_of_the_process(base) for base in kind.__mro__)


def _is_of_the_process(owner: Any) -> bool:
    module = getattr(owner, "__module__", None)
    return not isinstance(module, str) or module.partition(".")[0] in _OWN_OF_THE_PROCESS


def _attributes(path: str, value: Any) -> Iterator[Place]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    for name, item in list(own.items()):
        if not name.startswith("__") and name not in _CONNECTIONS:
            yield Place(f"{path}.{name}", item, value, name, _write_attribute)
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot = vars(kind).get(name)
            if isinstance(slot, types.MemberDescriptorType):
                item = _slot(slot, value)
                if item is not _MISSING:
                    yield Place(f"{path}.{name}", item, value, name, _write_attribute)


def _slot(slot: types.MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # not assigned yet
        return _MISSING


def _parts(path: str, module: nn.Module) -> Iterator[Place]:
    for name, own in list(vars(module).items()):
        if name in ("_parameters", "_buffers", "_modules"):
            write = _write_item if name == "_buffers" else None
            for key, item in list(own.items()):
                yield Place(f"{path}.{key}", item, own, key, write)
        elif name in _HOOKS:
            for number, hook in enumerate(list(own.values())):
                if not is_torchs(hook):
                    yield Place(f"{path}.{name}[{number}]", hook)
        elif name not in _PARTS_OF_MODULE and not name.startswith("__"):
            yield Place(f"{path}.{name}", own, vars(module), name, _write_item)
    for key, parameter in list(vars(module)["_parameters"].items()):
        for name, item in list(vars(parameter).items()) if parameter is not None else ():
            yield Place(f"{path}.{key}.{name}", item, parameter, name, _write_attribute)
        hooks = getattr(parameter, "_backward_hooks", None) or {}
        after = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        for number, hook in enumerate([*hooks.values(), *after.values()]):
            if not is_torchs(hook):
                yield Place(f"{path}.{key}.hooks[{number}]", hook)


def is_torchs(hook: Any) -> bool:
    """Whether it is one of torch's own (weight norm), which keep nothing outside of the model."""
    owner = hook.func if isinstance(hook, functools.partial) else hook
    module = getattr(owner, "__module__", None) or type(owner).__module__
    return str(module).split(".")[0] == "torch"


def _beside_state(path: str, optimizer: torch.optim.Optimizer) -> Iterator[Place]:
    """What an optimizer that is not torch's keeps beside its state: slow weights, averages."""
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return
    for name, own in list(vars(optimizer).items()):
        if name not in _OPTIMIZERS_OWN and not name.startswith("_"):
            yield Place(f"{path}.{name}", own, optimizer, name, _write_attribute)


def _of_loader(path: str, iterator: Any) -> Iterator[Place]:
    """Where an iterator with workers stands. Which of their batches have arrived, and for which
    they were asked, belongs to this process's workers and is never written."""
    for name in _LOADERS_PLACE:
        if name in vars(iterator):
            yield Place(f"{path}.{name}", vars(iterator)[name])


def _kept_by_function(path: str, function: types.FunctionType) -> Iterator[Place]:
    """Defaults, and the variables around it."""
    if _is_of_the_process(function):
        return
    for number, item in enumerate(function.__defaults__ or ()):
        yield Place(f"{path}.defaults[{number}]", item)
    for name, item in list((function.__kwdefaults__ or {}).items()):
        yield Place(f"{path}.defaults[{name!r}]", item, function.__kwdefaults__, name, _write_item)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Place(f"{path}.{name}", cell.cell_contents, cell, name, _write_cell)
        except ValueError:  # not assigned yet
            continue
    for name, item in list(vars(function).items()):
        yield Place(f"{path}.{name}", item, vars(function), name, _write_item)


def _of_method(path: str, method: types.MethodType) -> Iterator[Place]:
    yield Place(f"{path}.self", method.__self__)
    yield Place(f"{path}.function", method.__func__)


def _of_partial(path: str, value: functools.partial[Any]) -> Iterator[Place]:
    yield Place(f"{path}.func", value.func)
    yield Place(f"{path}.args", value.args)
    yield Place(f"{path}.keywords", value.keywords)


def _of_generator(path: str, value: types.GeneratorType[Any, Any, Any]) -> Iterator[Place]:
    frame = value.gi_frame
    if frame is not None:
        yield from _variables(path, FrameVariables(frame))
        yield Place(f"{path}.yield_from", value.gi_yieldfrom)
        loops = [one for one in gc.get_referents(value) if type(one) in _ITERATORS]
        for number, iterator in enumerate(loops):
            yield Place(f"{path}.loops[{number}]", iterator)


def _of_array(path: str, array_: np.ndarray[Any, Any]) -> Iterator[Place]:
    """The objects in an array of objects."""
    if array_.dtype == object:
        for number, item in _ends(array_.reshape(-1).tolist()):
            yield Place(f"{path}[{number}]", item, array_.flat, number, _write_item)


def _of_view(path: str, view: memoryview) -> Iterator[Place]:
    yield Place(f"{path}.obj", view.obj)


def _of_thread(path: str, local: threading.local) -> Iterator[Place]:
    own = vars(local)
    for name, item in list(own.items()):
        yield Place(f"{path}.{name}", item, own, name, _write_item)


def _of_context(path: str, variable: contextvars.ContextVar[Any]) -> Iterator[Place]:
    value = variable.get(_MISSING)
    if value is not _MISSING:
        yield Place(f"{path}.value", value, variable, "", _write_context)


def _of_weak(path: str, found: Any) -> Iterator[Place]:
    for number, (key, item) in _ends(list(found.items())):
        yield Place(f"{path}.keys[{number}]", key)
        yield Place(f"{path}[{key_name(key, number)}]", item, found, key, _write_item)


def _of_cache(path: str, cache: Any) -> Iterator[Place]:
    """What a cache holds is out of sight; `facts` tells how much that is."""
    yield Place(f"{path}.__wrapped__", getattr(cache, "__wrapped__", None))


def _of_class(path: str, kind: type) -> Iterator[Place]:
    if is_users_class(kind):
        for name, item in list(vars(kind).items()):
            if not name.startswith("__") and not isinstance(
                item, (staticmethod, classmethod, property, types.MemberDescriptorType)
            ):
                yield Place(f"{path}.{name}", item, kind, name, _write_class)


def _of_iterator(path: str, value: Any) -> Iterator[Place]:
    for number, item in enumerate(position(value)):
        yield Place(f"{path}.position[{number}]", item)


def is_cache(kind: type) -> bool:
    """Whether it is that of a function with `functools.lru_cache`."""
    return issubclass(kind, _CACHE)


def is_iterator(kind: type) -> bool:
    """Whether it is one of Python's own iterators, which know where they stand."""
    return kind in _ITERATORS


def position(iterator: Any) -> list[Any]:
    """What an iterator of Python's own goes over, and where it stands; it is not moved.

    Raises:
        TypeError: this version of Python cannot tell.
    """
    reduced = iterator.__reduce__()
    return [*reduced[1], *reduced[2:3]]


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


def _write_item(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def _write_attribute(holder: Any, name: str, value: Any) -> None:
    object.__setattr__(holder, name, value)


def _write_class(holder: type, name: str, value: Any) -> None:
    type.__setattr__(holder, name, value)


def _write_context(variable: contextvars.ContextVar[Any], _: str, value: Any) -> None:
    variable.set(value)


def _write_cell(cell: types.CellType, name: str, value: Any) -> None:
    cell.cell_contents = value
