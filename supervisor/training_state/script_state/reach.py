"""Everything that a script's variables lead to, each object once, by its shortest path.

Containers, objects of the script and of libraries, modules, closures, generators and iterators are
entered; torch's own objects only where they belong to data loading, schedules and DDP's hooks.

Which function lists what lies in a value, by its type.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from supervisor.errors import pass_on
from supervisor.training_state.script_state.inside_containers import (
    SCALARS,
    is_plain,
    of_array,
    of_dict,
    of_sequence,
    of_set,
    of_weak,
    passed_over,
)
from supervisor.training_state.script_state.inside_objects import (
    CACHE,
    METHODS_IN_C,
    attributes,
    held_in_c,
    holds_in_c,
    of_async_generator,
    of_cache,
    of_class,
    of_context,
    of_function,
    of_generator,
    of_iterator,
    of_method,
    of_method_in_c,
    of_module_object,
    of_partial,
    of_thread,
    of_variables,
    of_view,
    of_wrapper,
)
from supervisor.training_state.script_state.inside_process import (
    HANDLES,
    is_bare,
    is_database,
    of_coroutine,
    of_derived,
    of_handle,
    of_loader,
    of_module,
    of_optimizer,
    of_process,
    of_tensor,
)
from supervisor.training_state.script_state.place import CALLED_BY_NAME, SHOWN, Place, is_entered
from supervisor.training_state.script_state.single_values import ITERATORS, SINGLE
from supervisor.training_state.user_code import is_users_class

Entry: TypeAlias = Callable[[str, Any], Iterable[Place]]


def find_entry(kind: type) -> Entry | None:
    """Returns None for what is not entered."""
    if issubclass(kind, (np.generic, *SINGLE)) or str(kind.__module__).startswith("pathlib"):
        return None
    for kinds, entry in (
        ((list, tuple, collections.deque), of_sequence),
        ((dict,), of_dict),
        ((set, frozenset), of_set),
        ((torch.Tensor,), of_tensor),
        ((nn.Module,), of_module),
        ((torch.optim.Optimizer,), of_optimizer),
        ((_MultiProcessingDataLoaderIter,), of_loader),
        ((types.ModuleType,), of_module_object),
        ((types.FunctionType,), of_function),
        ((types.MethodType,), of_method),
        ((staticmethod, classmethod), of_wrapper),
        ((functools.partial,), of_partial),
        ((types.GeneratorType,), of_generator),
        ((types.CoroutineType,), of_coroutine),
        ((types.AsyncGeneratorType,), of_async_generator),
        (METHODS_IN_C, of_method_in_c),
        ((np.ndarray,), of_array),
        ((memoryview,), of_view),
        ((contextvars.ContextVar,), of_context),
        ((threading.local,), of_thread),
        ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary), of_weak),
        ((CACHE,), of_cache),
        (HANDLES, of_handle),
        ((type,), of_class),
    ):
        if issubclass(kind, kinds):
            return entry
    if kind in ITERATORS:
        return of_iterator
    if own := of_process(kind):
        return own
    if not is_entered(kind):
        return of_derived if is_users_class(kind) else None
    if kind.__dictoffset__ or any("__slots__" in vars(one) for one in kind.__mro__):
        return _all_of if holds_in_c(kind) else attributes
    return held_in_c if holds_in_c(kind) else None


def _all_of(path: str, value: Any) -> Iterator[Place]:
    yield from attributes(path, value)
    yield from held_in_c(path, value)


COUNT_LIMIT = 50_000
"""Objects that are entered; at 1 to 2 us each a tenth of a second."""
_VALUES = (tuple, frozenset)


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
        self._entries: dict[type, Entry | None] = {}
        self._kept: list[Place] | None = None

    def __iter__(self) -> Iterator[Place]:
        for name, variables in self._frames.items():
            yield from self._new(of_variables(name, variables))
        yield from self._below()
        for name, variables in self._at_last.items():
            yield from self._new(of_variables(name, variables))
        yield from self._below()

    def kept(self) -> Iterator[Place]:
        """The same walk for several who ask at one moment: what the first has come by is not gone
        through again."""
        if self._kept is None:
            kept = []
            for place in self:
                kept.append(place)
                yield place
            self._kept = kept
        else:
            yield from self._kept

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
                    elif not issubclass(kind, CALLED_BY_NAME):
                        place.same_as = self._paths[id(value)]
                    yield place
                    continue
                objects[id(value)] = value
                if self._paths is not None:
                    self._paths[id(value)] = place.path
                if is_plain(value) and place.path not in self._enter:
                    place.is_plain = True
                elif is_bare(value):
                    pass
                elif (entry := self._entry(kind)) is not None:
                    (self._sets if entry is of_set else waiting).append(place)
                elif not issubclass(kind, SHOWN):
                    self.out_of_reach += 1
            yield place

    def _inside(self, place: Place) -> list[Place]:
        value = place.value
        enter = self._entries[type(value)]
        assert enter is not None
        try:
            if enter in (of_sequence, of_dict, of_set):
                self.out_of_reach += passed_over(value)
            found = list(enter(place.path, value))
            return [] if enter is attributes and is_database(value, found) else found
        except BaseException as error:  # the user's own, or an iterator that cannot be copied
            pass_on(error)
            self.out_of_reach += 1
            return []

    def _entry(self, kind: type) -> Entry | None:
        try:
            return self._entries[kind]
        except KeyError:
            try:
                entry = find_entry(kind)
            except BaseException as error:  # the user's own metaclass
                pass_on(error)
                entry = None
            self._entries[kind] = entry
            return entry
