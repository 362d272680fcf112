"""What lies in lists, dictionaries, sets and arrays."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from supervisor.training_state.census.inside_objects import attributes
from supervisor.training_state.census.long_containers import of_middle
from supervisor.training_state.census.place import Place, write_item
from supervisor.training_state.census.plain_containers import SCALARS

LONG = 1_000
"""Of longer containers of objects only the ends are entered: what is new lies there. Of what lies
between, only tensors and arrays count (`long_containers`)."""
_FIRST, _LAST = 100, 400
_ADDRESS = 1 << 40
"""Whole numbers beyond are taken for addresses where they are keys: they differ in each process."""


def of_sequence(path: str, value: Any) -> Iterator[Place]:
    write = None if isinstance(value, tuple) else write_item
    base = next(one for one in (list, tuple, collections.deque) if isinstance(value, one))
    size = base.__len__(value)  # a derived class may have another idea
    numbers: Iterable[int] = range(size)
    if size > LONG:
        numbers = (*range(_FIRST), *range(size - _LAST, size))
    for index in numbers:
        yield Place(f"{path}[{index}]", base.__getitem__(value, index), value, index, write)
    if size > LONG:
        items = [(str(index), index, item) for index, item in enumerate(base.__iter__(value))]
        yield from of_middle(path, value, items[_FIRST:-_LAST], write)
    yield from attributes(path, value)


def of_dict(path: str, value: dict[Any, Any]) -> Iterator[Place]:
    pairs = list(dict.items(value))
    for number, (key, item) in _ends(pairs):
        name = key_name(key, number)
        if name.endswith(f" #{number}"):
            yield Place(f"{path}.keys[{number}]", key)
        yield Place(f"{path}[{name}]", item, value, key, write_item)
    if len(pairs) > LONG:
        items = [(key_name(key, n), key, item) for n, (key, item) in enumerate(pairs)]
        yield from of_middle(path, value, items[_FIRST:-_LAST], write_item)
    yield from attributes(path, value)


def of_set(path: str, value: Any) -> Iterator[Place]:
    """In the order in which a loop over the set meets them."""
    for number, item in _ends(list(value)):
        yield Place(f"{path}[{number}]", item)
    yield from attributes(path, value)


def of_array(path: str, array_: np.ndarray[Any, Any]) -> Iterator[Place]:
    """The objects in an array of objects."""
    if array_.dtype == object:
        for number, item in _ends(array_.reshape(-1).tolist()):
            yield Place(f"{path}[{number}]", item, array_.flat, number, write_item)


def of_weak(path: str, found: Any) -> Iterator[Place]:
    for number, (key, item) in _ends(list(found.items())):
        yield Place(f"{path}.keys[{number}]", key)
        yield Place(f"{path}[{key_name(key, number)}]", item, found, key, write_item)


def passed_over(container: Any) -> int:
    """How many items are not entered."""
    size = len(container)
    return size - _FIRST - _LAST if size > LONG else 0


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
