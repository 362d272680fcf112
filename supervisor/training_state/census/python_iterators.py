"""Python's own iterators, which know where they stand."""

from __future__ import annotations

import itertools
from typing import Any

_EMPTY: tuple[Any, ...] = ([], (), "", range(0), {}, {}.values(), {}.items(), set())
ITERATORS: tuple[type, ...] = (
    *(type(iter(empty)) for empty in _EMPTY),
    *(enumerate, zip, map, filter, reversed, type(reversed([]))),
    *(own for own in vars(itertools).values() if isinstance(own, type)),
)


def is_iterator(kind: type) -> bool:
    """Whether it is one of Python's own iterators, which know where they stand."""
    return kind in ITERATORS


def position(iterator: Any) -> list[Any]:
    """What an iterator of Python's own goes over, and where it stands; it is not moved.

    Raises:
        TypeError: this version of Python cannot tell.
    """
    reduced = iterator.__reduce__()
    return [*reduced[1], *reduced[2:3]]
