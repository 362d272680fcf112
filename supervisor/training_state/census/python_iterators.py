"""Python's own iterators, which know where they stand."""

from __future__ import annotations

import itertools
import sys
import warnings
from typing import Any

_EMPTY: tuple[Any, ...] = ([], (), "", range(0), {}, {}.values(), {}.items(), set())
_OF_ITERTOOLS = tuple(own for own in vars(itertools).values() if isinstance(own, type))
ITERATORS: tuple[type, ...] = (
    *(type(iter(empty)) for empty in _EMPTY),
    *(enumerate, zip, map, filter, reversed, type(reversed([]))),
    *_OF_ITERTOOLS,
)
_WARN = _OF_ITERTOOLS if (3, 12) <= sys.version_info < (3, 14) else ()
_QUIET = ("ignore", None, DeprecationWarning, None, 0)


def is_iterator(kind: type) -> bool:
    """Whether it is one of Python's own iterators, which know where they stand."""
    return kind in ITERATORS


def position(iterator: Any) -> list[Any]:
    """What an iterator of Python's own goes over, and where it stands; it is not moved.

    Raises:
        TypeError: this version of Python cannot tell.
    """
    found = reduced(iterator)
    return [*found[1], *found[2:3]]


def reduced(iterator: Any) -> Any:
    """Returns what `copy` would make another one of, as `__reduce__` does.

    Python 3.12 and 3.13 warn that those of `itertools` will not tell from 3.14 on; the script has
    not asked.
    """
    if type(iterator) not in _WARN:
        return iterator.__reduce__()
    # not `catch_warnings`: Python would then show again what it has shown the script once
    filters: Any = warnings.filters
    filters.insert(0, _QUIET)
    try:
        return iterator.__reduce__()
    finally:
        filters.remove(_QUIET)
