"""Python's own iterators, which know where they stand."""

from __future__ import annotations

import array
import collections
import gc
import itertools
import sys
from typing import Any

from supervisor.unwarned import unwarned

_EMPTY: tuple[Any, ...] = (
    *([], (), "", b"", bytearray(), range(0), array.array("b"), collections.deque()),
    *({}, {}.values(), {}.items(), collections.OrderedDict(), set()),
)
_REVERSIBLE: tuple[Any, ...] = ([], {}, {}.items(), {}.values(), collections.deque())
_OF_ITERTOOLS = tuple(own for own in vars(itertools).values() if isinstance(own, type))
ITERATORS: tuple[type, ...] = (
    *(type(iter(empty)) for empty in _EMPTY),
    *(enumerate, zip, map, filter, reversed, type(iter(int, 1))),
    *(type(reversed(empty)) for empty in _REVERSIBLE),
    *_OF_ITERTOOLS,
)
_WARN = _OF_ITERTOOLS if (3, 12) <= sys.version_info < (3, 14) else ()
"""That they will not tell from Python 3.14 on."""
_SEEN_WHOLE = tuple(vars(itertools)[n] for n in ("pairwise", "batched") if hasattr(itertools, n))
"""They do not tell where they stand, but the collector is told of all that they go on from."""


def is_iterator(kind: type) -> bool:
    """Whether it is one of Python's own iterators, which know where they stand."""
    return kind in ITERATORS


def position(iterator: Any) -> list[Any]:
    """What an iterator of Python's own goes over, and where it stands; it is not moved.

    Raises:
        TypeError: this version of Python cannot tell.
    """
    if type(iterator) in _SEEN_WHOLE:
        return gc.get_referents(iterator)
    found = unwarned(iterator.__reduce__) if type(iterator) in _WARN else iterator.__reduce__()
    return [*found[1], *found[2:3]]
