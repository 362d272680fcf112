"""Python's own iterators, which know where they stand."""

from __future__ import annotations

import array
import collections
import gc
import io
import itertools
import operator
import re
import struct
import sys
import types
from typing import Any

import numpy as np

from supervisor.unwarned import unwarned

_EMPTY: tuple[Any, ...] = (
    *([], (), "", "ä", b"", bytearray(), range(0), range(1 << 70), array.array("b")),
    *({}, {}.values(), {}.items(), collections.OrderedDict(), set(), collections.deque()),
    *(np.zeros(0), memoryview(b"")),  # the former's asks any sequence for one item after the other
)
_REVERSIBLE: tuple[Any, ...] = ([], {}, {}.items(), {}.values(), collections.deque())
_OF_ITERTOOLS = tuple(own for own in vars(itertools).values() if isinstance(own, type))
_COUNTED = type(struct.iter_unpack("B", b""))
"""It tells how many items are left, and nothing else."""
ITERATORS: tuple[type, ...] = (
    _COUNTED,
    *(type(iter(empty)) for empty in _EMPTY),
    *(enumerate, zip, map, filter, reversed, type(iter(int, 1))),
    *(type(reversed(empty)) for empty in _REVERSIBLE),
    *_OF_ITERTOOLS,
)
_KNOWN = {*ITERATORS, types.GeneratorType, np.nditer, np.flatiter}
_SCANNER = type(re.compile("").scanner(""))  # type: ignore[attr-defined]
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
    if type(iterator) is _COUNTED:
        return [operator.length_hint(iterator)]
    found = unwarned(iterator.__reduce__) if type(iterator) in _WARN else iterator.__reduce__()
    return [*found[1], *found[2:3]]


def hides_its_place(kind: type) -> bool:
    """Whether it is an iterator of C code that nobody can ask where it stands: that of
    `re.finditer`, the cursor of a database, a generator of Cython."""
    if kind is _SCANNER:
        return True
    is_in_c = isinstance(getattr(kind, "__next__", None), types.WrapperDescriptorType)
    return is_in_c and kind not in _KNOWN and not issubclass(kind, io.IOBase)
