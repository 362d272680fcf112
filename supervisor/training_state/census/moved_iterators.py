"""Moves Python's own iterators on to where they stood: forwards that a replay left out took from
them."""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Mapping
from typing import Any

from supervisor.training_state.census.facts import fact_of
from supervisor.training_state.census.place import Place
from supervisor.training_state.census.plain_containers import is_plain
from supervisor.training_state.census.python_iterators import position, reduced
from supervisor.unwarned import unwarned

_ALONE: tuple[type, ...] = (
    *(type(iter([])), type(iter(())), type(iter("")), type(iter(range(0)))),
    itertools.count,
)
"""To take from these changes nothing else."""
_FARTHEST = 100_000
_BELOW = ".position["


def owner(path: str) -> str:
    """Returns the path of the iterator whose place `path` tells; else `path` itself."""
    return path.partition(_BELOW)[0]


def can_be_moved(value: Any) -> bool:
    kind = type(value)
    return kind in _ALONE or kind is itertools.cycle


def move_on(path: str, iterator: Any, recorded: Mapping[str, str | None]) -> bool:
    """Moves an iterator to where all that differs is as it was; returns whether there is such a
    place ahead of it.

    Args:
        path: where it lies.
        recorded: path → fact, of all that differs.

    Raises:
        TypeError: this version of Python cannot tell, or it goes over something else.
        StopIteration: there is none.
    """
    of_own = [name for name in recorded if owner(name) == path and name.count(_BELOW) <= 1]
    ahead = _copied(iterator)
    for moves in range(_FARTHEST):
        facts = _facts(path, ahead)
        if all(facts.get(name) == recorded[name] for name in of_own):
            collections.deque(itertools.islice(iterator, moves), maxlen=0)
            return True
        next(ahead)
    return False


def _copied(iterator: Any) -> Any:
    if type(iterator) is not itertools.cycle:
        return copy.copy(iterator)
    _, (inner,), (saved, is_over) = reduced(iterator)
    if type(inner) not in _ALONE:
        raise TypeError(f"a cycle over {type(inner).__name__}")
    other: Any = itertools.cycle(copy.copy(inner))
    unwarned(lambda: other.__setstate__((list(saved), is_over)))
    return other


def _facts(path: str, iterator: Any) -> dict[str, str]:
    places = [Place(path, iterator)]
    for number, item in enumerate(position(iterator)):
        below = Place(f"{path}{_BELOW}{number}]", item)
        below.is_plain = is_plain(item)
        places.append(below)
    return {place.path: fact_of(place) for place in places}
