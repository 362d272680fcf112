"""Where a stream of samples stands, if that is known: the place of the one iterator that moves.

A generator that waits goes on from its local variables and from the iterators of its loops. Where
none of the variables that it will read has changed since the sample before, and of the iterators
only the innermost has moved, and that is one of Python's own, it can be brought to a later sample
by moving that iterator on: the samples between need not be made.
"""

from __future__ import annotations

import collections
import gc
import itertools
import operator
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from supervisor.training_state.census.frame_variables import FrameVariables, held_by
from supervisor.training_state.census.python_iterators import reduced
from supervisor.worker.recording.loading.fingerprint import CannotTell
from supervisor.worker.recording.loading.live_locals import live_names, yields_a_statement

_EMPTY: tuple[Any, ...] = ([], (), "", b"", range(0), range(1 << 70), {}, {}.values(), {}.items())
_COUNTED: tuple[type, ...] = (*(type(iter(empty)) for empty in _EMPTY), type(reversed([])))
"""They know how many items are left, and run no code of the script's."""
_BY_NUMBER: type = type(iter(np.zeros(0)))
"""Asks a sequence for one item after the other, which may be the script's code."""
_ITEMS: type = type(iter(dict[Any, Any]().items()))
_AROUND = (enumerate, zip)
_APPLYING = (map, filter)
_KINDS = (*_COUNTED, _BY_NUMBER, *_AROUND, *_APPLYING, itertools.count, types.GeneratorType)
_AROUND_IT = (types.MethodType, types.BuiltinMethodType, BaseException)
"""A generator that waits within ``with`` or ``except`` holds some of these in no variable."""
_DEEP = 8
_AHEAD = 64


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a stream stands.

    Attributes:
        iterators: its own, from the outside inwards; the last one moves.
        left: items that each has left; of an endless one, a number that falls by one an item.
        kept: what it will read again: variables of generators, functions that are applied.
        over: what the iterators go over.
        codes: of its generators.
    """

    iterators: list[Any] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    over: list[Any] = field(default_factory=list)
    codes: list[types.CodeType] = field(default_factory=list)

    def follows(self, earlier: StreamPlace) -> bool:
        """Whether only the innermost iterator has moved since an earlier place."""
        return (
            self.left[:-1] == earlier.left[:-1]
            and self.left[-1] < earlier.left[-1]
            and _are_same(self.iterators, earlier.iterators)
            and _are_same(self.kept, earlier.kept)
        )

    def move(self, left: int) -> None:
        """Moves the innermost iterator on until so many items are left.

        Raises:
            ValueError: it has not that many.
        """
        iterator, more = self.iterators[-1], self.left[-1] - left
        if more < 0:
            raise ValueError("a stream of samples is already further than in the recorded run")
        if _is_by_number(iterator):
            iterator.__setstate__(iterator.__reduce__()[2] + more)
        else:
            collections.deque(itertools.islice(iterator, more), maxlen=0)
        if _left(iterator) != left:
            raise ValueError("a stream of samples ends earlier than in the recorded run")

    def coming(self) -> list[int]:
        """Where the next items lie in what the innermost iterator goes over, and the whole numbers
        among these items: where the samples lie that are made next."""
        sequences = [one for one in _sequences(self.iterators[-1]) if hasattr(one, "__len__")]
        here = max(0, min(map(len, sequences), default=0) - self.left[-1])
        found = [*range(here, here + _AHEAD)]
        for one in sequences:
            if isinstance(one, (list, tuple, range)) or (type(one) is np.ndarray and one.ndim == 1):
                items = one[here : here + _AHEAD]
                found += [int(item) for item in items if isinstance(item, (int, np.integer))]
        return found


def place_of(iterator: Any) -> StreamPlace:
    """Returns where a stream stands; it is not moved.

    Raises:
        CannotTell: it goes on from something else: a file, a queue, an object with ``__next__``.
    """
    found = StreamPlace()
    _enter(iterator, found, 0)
    return found


def _enter(iterator: Any, found: StreamPlace, depth: int) -> None:
    kind = type(iterator)
    if depth > _DEEP or kind not in _KINDS:
        raise CannotTell(f"a {kind.__name__} goes on from sample to sample")
    if kind is types.GeneratorType:
        frame = iterator.gi_frame
        if frame is None:
            raise CannotTell("its generator has ended")
        if not yields_a_statement(frame):
            raise CannotTell("its generator yields within an expression")
        inner = _iterators_in(iterator)
        own = {id(one) for one in inner}
        found.codes.append(frame.f_code)
        variables = FrameVariables(frame)
        kept = [variables[name] for name in sorted(live_names(frame) & variables.keys())]
        found.kept.extend(one for one in kept if id(one) not in own)
        found.kept.extend(one for one in held_by(iterator) if isinstance(one, _AROUND_IT))
        if not inner:
            raise CannotTell("its generator goes over nothing that shows its place")
        for one in inner:
            _enter(one, found, depth + 1)
    elif kind in _APPLYING:
        function, *inner = reduced(iterator)[1]
        if len(inner) != 1:
            raise CannotTell(f"a {kind.__name__} goes over several iterators")
        found.kept.append(function)
        _enter(inner[0], found, depth + 1)
    else:
        found.iterators.append(iterator)
        found.left.append(_left(iterator))
        found.over.extend(_sequences(iterator))


def _iterators_in(generator: Any) -> list[Any]:
    """Iterators that a generator's loops and variables hold, each once, outer loops first."""
    found: dict[int, Any] = {}
    for one in held_by(generator):
        if hasattr(type(one), "__next__"):
            found.setdefault(id(one), one)
    return list(found.values())


def _left(iterator: Any) -> int:
    kind = type(iterator)
    if kind is itertools.count:
        first, *step = reduced(iterator)[1]
        if type(first) is not int or step not in ([], [1]):
            raise CannotTell("an endless count goes by other steps than one")
        return -first
    if kind in _AROUND:
        return min(map(_left, _parts(iterator)))
    if kind in _COUNTED or kind is _BY_NUMBER:
        left = operator.length_hint(iterator, -1)
        if left >= 0:
            return left
    raise CannotTell(f"a {kind.__name__} does not show its place")


def _parts(iterator: Any) -> list[Any]:
    parts = reduced(iterator)[1]
    inner = list(parts) if type(iterator) is zip else [parts[0]]
    if not inner or not all(map(_runs_no_code, inner)):
        raise CannotTell(f"a {type(iterator).__name__} goes over something that hides its place")
    return inner


def _is_by_number(iterator: Any) -> bool:
    return type(iterator) is _BY_NUMBER


def _runs_no_code(iterator: Any) -> bool:
    if type(iterator) is _BY_NUMBER:
        return all(type(one) is np.ndarray for one in gc.get_referents(iterator))
    return type(iterator) in (*_COUNTED, *_AROUND)


def _sequences(iterator: Any) -> list[Any]:
    """What one of Python's own iterators goes over."""
    if type(iterator) in _AROUND:
        return [one for part in _parts(iterator) for one in _sequences(part)]
    own_row = type(iterator) is _ITEMS  # a tuple that it uses again for each pair
    return [one for one in gc.get_referents(iterator) if not (own_row and type(one) is tuple)]


def _are_same(these: list[Any], those: list[Any]) -> bool:
    return len(these) == len(those) and all(map(operator.is_, these, those))
