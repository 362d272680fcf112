"""Lists, dictionaries and sets that hold only numbers, strings and each other."""

from __future__ import annotations

import collections
import itertools
import marshal
from collections.abc import Iterable
from typing import Any

SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_DICTS = frozenset({dict, collections.OrderedDict, collections.defaultdict, collections.Counter})
_SEQUENCES = frozenset({list, tuple, collections.deque})
_SETS = frozenset({set, frozenset})
CONTAINERS = _DICTS | _SEQUENCES | _SETS
_NESTED = 4
LONG = 100_000
"""Longer ones are judged by their ends: looking at each item of a million takes 20 ms."""
MANY = 2_000
"""Of more containers within one only the ends are looked at: a data set of token lists."""
_ENDS = 500
_ALIGNED = 16
_ADDRESSES = range(1 << 40, 1 << 48)


def is_plain(value: Any, nested: int = _NESTED) -> bool:
    """Whether `value` is a container of the usual kinds, with nothing else in it."""
    kind = type(value)
    if kind in _DICTS:
        keys, items = set(map(type, _ends(value))), value.values()
        if not keys <= SCALARS or (keys == {int} and _are_addresses(_ends(value))):
            return False
    elif kind in CONTAINERS:
        items = value
    else:
        return False
    others = set(map(type, _ends(items))) - SCALARS
    if not others:
        return True
    if not nested or not others <= CONTAINERS:
        return False
    return all(is_plain(i, nested - 1) for i in _ends(items, MANY) if type(i) in others)


def _are_addresses(keys: Iterable[int]) -> bool:
    """Whether a dictionary is by the addresses of objects, others in each process."""
    return all(key % _ALIGNED == 0 and _ADDRESSES.start <= key < _ADDRESSES.stop for key in keys)


def content(value: Any) -> bytes:
    """The content of a plain container in bytes: the same in every process for the same content."""
    items = _items(value)
    is_flat = SCALARS.issuperset(map(type, _ends(items)))
    most = LONG if is_flat else MANY
    if len(value) > most:
        return marshal.dumps([len(value), _exact(list(_ends(items, most)))], 2)
    return marshal.dumps(_exact(value), 2)


def added_in_order(items: Iterable[Any]) -> list[Any]:
    """The order in which `items` must be put into an empty set so that a loop over it meets them in
    the given one; where there is none, the given one."""
    wanted = list(items)
    found = (one for one in (wanted, wanted[::-1]) if list(set(one)) == wanted)
    return next(found, wanted)


def _items(value: Any) -> Any:
    return value.values() if type(value) in _DICTS else value


def _ends(items: Any, most: int = LONG) -> Any:
    """The items, or of very many those at both ends."""
    if len(items) <= most:
        return items
    if hasattr(items, "__getitem__"):
        return [items[i] for i in (*range(_ENDS), *range(-_ENDS, 0))]
    return list(itertools.islice(items, _ENDS))


def _exact(value: Any) -> Any:
    """`value` in the types that `marshal` knows; sets in the order in which a loop meets them."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind in _DICTS:
        if SCALARS.issuperset(map(type, value.values())):
            return dict(value)
        return {key: _exact(item) for key, item in value.items()}
    if kind in _SETS:
        return [_exact(item) for item in value]
    if SCALARS.issuperset(map(type, value)):
        return list(value) if kind is collections.deque else value
    return [_exact(item) for item in value]
