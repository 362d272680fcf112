"""What lies in lists, dictionaries, sets and arrays.

The tensors and arrays in the middle of long containers: banks of features, replay buffers. Lists,
dictionaries and sets that hold only numbers, strings and each other.

Lists and dictionaries within containers of numbers and strings that something else names, too.

Such a container is compared and put back as a whole, without being entered. Where another variable
names a part of it (``losses = history["loss"]``), what is added to the one is seen in the other.
"""

from __future__ import annotations

import ast
import collections
import copy
import itertools
import marshal
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import xxhash

from supervisor.training_state.script_state.inside_objects import attributes
from supervisor.training_state.script_state.place import Place, write_item
from supervisor.training_state.tensors import bytes_of

LOOKED_THROUGH = 20_000
"""Items of a middle; of longer ones as many, evenly spread."""
ENTERED = 4_096
"""Tensors and arrays of a middle that are saved and put back; of more some are compared."""
COMPARED = 512
_VALUES = (torch.Tensor, np.ndarray)
_BYTES = 65_536
"""Of each of those."""
_ROW = 32
"""Fields of an item that is entered."""
Write: TypeAlias = Callable[[Any, Any, Any], None] | None


def of_middle(
    path: str, holder: Any, items: Sequence[tuple[str, Any, Any]], write: Write
) -> Iterator[Place]:
    """Lists them where they are few, and otherwise how many there are and what some of them hold:
    that can be compared, not put back.

    Args:
        path: of the container.
        holder: the container.
        items: name in a path, key and value of each item between the ends.
        write: as for `Place`.
    """
    stride = max(1, len(items) // LOOKED_THROUGH)
    found = [
        place
        for name, key, item in items[::stride]
        for place in _values_in(f"{path}[{name}]", item, holder, key, write)
    ]
    if stride == 1 and len(found) <= ENTERED:
        yield from found
    elif found:
        spread = found[:: max(1, len(found) // COMPARED)]
        yield Place(f"{path}.middle", (len(found), _digest([place.value for place in spread])))


def _values_in(path: str, item: Any, holder: Any, key: Any, write: Write) -> Iterator[Place]:
    if isinstance(item, _VALUES):
        yield Place(path, item, holder, key, write)
        return
    if isinstance(item, (tuple, list)) and len(item) <= _ROW:
        own = write_item if isinstance(item, list) else None
        for number, value in enumerate(item):
            if isinstance(value, _VALUES):
                yield Place(f"{path}[{number}]", value, item, number, own)
        return
    named = item if isinstance(item, dict) else getattr(item, "__dict__", {})
    for name, value in named.items() if len(named) <= _ROW else ():
        if isinstance(value, _VALUES) and isinstance(name, (str, int)):
            yield Place(f"{path}[{name!r}]", value, named, name, write_item)


def _digest(values: list[Any]) -> str:
    total = xxhash.xxh3_64()
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.device.type != "cpu":
                continue
            total.update(bytes_of(value)[:_BYTES])
        elif not value.dtype.hasobject:
            memory: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)[:_BYTES]
            total.update(memory)
    return total.hexdigest()


SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_DICTS = frozenset({dict, collections.OrderedDict, collections.defaultdict, collections.Counter})
_SEQUENCES = frozenset({list, tuple, collections.deque})
_SETS = frozenset({set, frozenset})
CONTAINERS = _DICTS | _SEQUENCES | _SETS
_NESTED = 4
MOST_PLAIN = 100_000
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
        keys, items = set(map(type, _both_ends(value))), value.values()
        if not keys <= SCALARS or (keys == {int} and _are_addresses(_both_ends(value))):
            return False
    elif kind in CONTAINERS:
        items = value
    else:
        return False
    others = set(map(type, _both_ends(items))) - SCALARS
    if not others:
        return True
    if not nested or not others <= CONTAINERS:
        return False
    return all(is_plain(i, nested - 1) for i in _both_ends(items, MANY) if type(i) in others)


def _are_addresses(keys: Iterable[int]) -> bool:
    """Whether a dictionary is by the addresses of objects, others in each process."""
    return all(key % _ALIGNED == 0 and _ADDRESSES.start <= key < _ADDRESSES.stop for key in keys)


def content(value: Any) -> bytes:
    """The content of a plain container in bytes: the same in every process for the same content."""
    items = _items(value)
    is_flat = SCALARS.issuperset(map(type, _both_ends(items)))
    most = MOST_PLAIN if is_flat else MANY
    if len(value) > most:
        return marshal.dumps([len(value), _exact(list(_both_ends(items, most)))], 2)
    return marshal.dumps(_exact(value), 2)


def added_in_order(items: Iterable[Any]) -> list[Any]:
    """The order in which `items` must be put into an empty set so that a loop over it meets them in
    the given one; where there is none, the given one."""
    wanted = list(items)
    found = (one for one in (wanted, wanted[::-1]) if list(set(one)) == wanted)
    return next(found, wanted)


def _items(value: Any) -> Any:
    return value.values() if type(value) in _DICTS else value


def _both_ends(items: Any, most: int = MOST_PLAIN) -> Any:
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


LONG = 1_000
"""Of longer containers of objects only the ends are entered: what is new lies there. Of what lies
between, only tensors and arrays count (`long_containers`)."""
_FIRST, _LAST = 100, 400
_ADDRESS = 1 << 40
"""Whole numbers beyond are taken for addresses where they are keys: they differ in each process."""
_SHORTEST = 14
_ADDRESS_WITHIN = re.compile(r"(?<!\d)(?:9[3-9]\d{12}|1[0-4]\d{13})(?!\d)")
"""The same within texts: libraries name what has no name of its own by its `id`. A program's memory
begins at 0x55 << 40, that of its libraries at 0x7f << 40."""


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
    if kind is str and len(key) >= _SHORTEST and _ADDRESS_WITHIN.search(key):
        return f"#{number}"
    if kind in SCALARS or (kind is tuple and SCALARS.issuperset(map(type, key))):
        return repr(key)
    return f"{kind.__name__} #{number}"


_SHARED = "also the object at "
_OF_ITERATOR = ".position["
_UNSHARED = frozenset({tuple, frozenset, set})
"""Kinds that nothing is added to, or that have no places for their parts."""
_STEP = re.compile(r"\[((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\[\]])+)\]")


def is_shared(fact: str | None) -> bool:
    """Whether a fact is one of `shared_parts`."""
    return fact is not None and fact.startswith(_SHARED)


def shared_parts(places: Iterable[Place]) -> dict[str, str]:
    """Returns path of a part → a fact that tells where else the same object lies.

    What an iterator goes over is told when it is asked where it stands, and is no place of a part.
    """
    firsts: dict[int, str] = {}
    parts: list[tuple[str, Any]] = []
    for place in places:
        kind = type(place.value)
        if kind in CONTAINERS and not place.same_as and _OF_ITERATOR not in place.path:
            firsts.setdefault(id(place.value), place.path)
            if place.is_plain:
                parts += _parts(place.path, place.value)
    found = {}
    for path, part in parts:
        first = firsts.setdefault(id(part), path)
        if first != path:
            found[path] = _SHARED + first
    return found


def share_again(path: str, recorded: str | None, places: Mapping[str, Place]) -> bool:
    """Lets the part at `path` be the object that a fact names, or one of its own for None; returns
    whether that was possible (not in a tuple).

    Raises:
        LookupError: one of the two is not there.
    """
    inner, _, key_text = path.rpartition("[")
    holder, key = _at(inner, places), ast.literal_eval(key_text.removesuffix("]"))
    if type(holder) not in CONTAINERS - _UNSHARED:
        return False
    holder[key] = copy.deepcopy(holder[key]) if recorded is None else shared(recorded, places)
    return True


def shared(fact: str, places: Mapping[str, Place]) -> Any:
    """The live object that a fact of `shared_parts` names.

    Raises:
        LookupError: it is not there.
    """
    return _at(fact.removeprefix(_SHARED), places)


def _at(path: str, places: Mapping[str, Place]) -> Any:
    """What lies at a path, which may lead into a container that was not entered.

    Raises:
        LookupError: nothing does.
    """
    if path in places:
        return places[path].value
    steps = [match for match in _STEP.finditer(path) if match.end() == len(path)]
    if not steps:
        raise LookupError(path)
    return _at(path[: steps[0].start()], places)[ast.literal_eval(steps[0][1])]


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if len(value) > LONG or type(value) in (set, frozenset):
        return
    is_dict = isinstance(value, dict)
    items = value.values() if is_dict else value
    if SCALARS.issuperset(map(type, items)):
        return
    for number, (key, item) in enumerate(value.items() if is_dict else enumerate(value)):
        if type(item) in SCALARS:
            continue
        inner = f"{path}[{key_name(key, number)}]"
        if type(item) not in _UNSHARED:
            yield inner, item
        yield from _parts(inner, item)
