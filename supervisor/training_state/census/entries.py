"""Which function lists what lies in a value, by its type."""

from __future__ import annotations

import collections
import contextvars
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from supervisor.training_state.census.inside_c_objects import (
    METHODS_IN_C,
    held_in_c,
    holds_in_c,
    of_method_in_c,
)
from supervisor.training_state.census.inside_containers import (
    of_array,
    of_dict,
    of_sequence,
    of_set,
    of_weak,
)
from supervisor.training_state.census.inside_functions import (
    CACHE,
    of_async_generator,
    of_cache,
    of_function,
    of_generator,
    of_method,
    of_module_object,
    of_partial,
    of_wrapper,
)
from supervisor.training_state.census.inside_objects import (
    attributes,
    of_class,
    of_context,
    of_iterator,
    of_thread,
    of_view,
)
from supervisor.training_state.census.inside_process import of_coroutine, of_derived, of_process
from supervisor.training_state.census.inside_torch import (
    of_handle,
    of_loader,
    of_module,
    of_optimizer,
    of_tensor,
)
from supervisor.training_state.census.left_out import is_entered
from supervisor.training_state.census.place import Place
from supervisor.training_state.census.python_iterators import ITERATORS
from supervisor.training_state.census.single_values import SINGLE
from supervisor.training_state.exchange_handles import HANDLES
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
