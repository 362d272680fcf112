"""What lies in objects and classes of the script and of libraries."""

from __future__ import annotations

import contextvars
import threading
import types
from collections.abc import Iterator
from typing import Any

from supervisor.training_state.census.left_out import is_pythons_own
from supervisor.training_state.census.place import (
    Place,
    write_attribute,
    write_class,
    write_context,
    write_item,
)
from supervisor.training_state.census.python_iterators import position
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
