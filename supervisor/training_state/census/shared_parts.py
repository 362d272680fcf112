"""Lists and dictionaries within containers of numbers and strings that something else names, too.

Such a container is compared and put back as a whole, without being entered. Where another variable
names a part of it (``losses = history["loss"]``), what is added to the one is seen in the other.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from supervisor.training_state.census.inside_containers import LONG, key_name
from supervisor.training_state.census.place import Place
from supervisor.training_state.census.plain_containers import CONTAINERS, SCALARS

_SHARED = "also the object at "
_OF_ITERATOR = ".position["
_VALUES = frozenset({tuple, frozenset, set})
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
    if type(holder) not in CONTAINERS - _VALUES:
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
        if type(item) not in _VALUES:
            yield inner, item
        yield from _parts(inner, item)
