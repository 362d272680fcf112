"""The script state: a fact for each place that the script's variables lead to.

What differs between the script state of a checkpoint and the one on arrival.
"""

from __future__ import annotations

import gc
import json
import os
import re
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from supervisor.errors import pass_on
from supervisor.training_state.script_state.facts import (
    TEMPORARY,
    UNSEEN,
    CannotPutBack,
    fact_of,
    holds_generator_state,
    is_entered,
    same_as,
    value_of,
)
from supervisor.training_state.script_state.inside_containers import is_shared, shared_parts
from supervisor.training_state.script_state.place import Place
from supervisor.training_state.script_state.reach import Reach
from supervisor.training_state.script_state.single_values import hides_its_place
from supervisor.training_state.tensors import outside_autograd, storage_of
from supervisor.uncollected import uncollected

ADDRESS = "the address of an object"
RANDOM_NUMBERS = "random numbers before the training"
"""Path in the first script state of a run: where the global generators stood."""
PROCESS_NUMBER = "number of the process"
"""Path in the first script state of a run."""
CALL = "call"
"""Begins the paths of the call under way."""
_ADDRESSES = 1 << 32
"""Whole numbers beyond may be addresses of objects; they are if an object lies there."""


@dataclass(frozen=True, kw_only=True)
class ScriptState:
    """What the script's Python held at one moment.

    Attributes:
        facts: path → fact, see `facts.fact_of`.
        out_of_reach: objects that hide their state, and parts of very long containers.
        is_whole: there were not too many objects.
    """

    facts: dict[str, str] = field(default_factory=dict)
    out_of_reach: int = 0
    is_whole: bool = True

    @classmethod
    def take(cls, reach: Reach, but: Collection[int] = ()) -> ScriptState:
        """Goes over all that the script can reach. Called outside of torch's own code.

        Args:
            reach: see `reach_of`.
            but: memory of tensors that a checkpoint holds anyway (`tensors.storage_of`).
        """
        return cls._of(reach, but)[0]

    @classmethod
    def with_places(
        cls,
        frames: Mapping[str, Any],
        but: Collection[int] = (),
        call: Mapping[str, Any] | None = None,
        like: ScriptState | None = None,
    ) -> tuple[ScriptState, dict[str, Place]]:
        """The same, and the live places by their paths. Called on arrival.

        Args:
            frames, call: see `reach_of`.
            but: see `take`.
            like: what it is to be compared with: the same containers are entered.
        """
        entered = {path for path, fact in like.facts.items() if is_entered(fact)} if like else ()
        return cls._of(reach_of(frames, call, entered), but, asks_gc=True)

    @classmethod
    def _of(
        cls, reach: Reach, but: Collection[int], *, asks_gc: bool = False
    ) -> tuple[ScriptState, dict[str, Place]]:
        facts: dict[str, str] = {}
        places: dict[str, Place] = {}
        hidden = 0
        numbers: list[tuple[Place, list[int]]] = []
        with outside_autograd(), torch._C.DisableTorchFunctionSubclass(), uncollected():
            for place in reach.kept():
                value = place.value
                places[place.path] = place
                is_saved = issubclass(type(value), torch.Tensor) and storage_of(value) in but
                if is_saved and not place.same_as:
                    continue
                try:
                    facts[place.path] = fact_of(place)
                except BaseException as error:  # a __len__ or __repr__ of the user's class
                    pass_on(error)
                    hidden += 1
                if type(value) is int and value > _ADDRESSES:
                    numbers.append((place, [value]))
                elif place.is_plain and (large := _large(value)):
                    numbers.append((place, large))
        known: Collection[int] = reach.objects.keys()
        if asks_gc and numbers:
            known = {*known, *map(id, gc.get_objects())}
        for place, values in numbers:
            if all(value in known for value in values):
                facts[place.path] = ADDRESS
        facts.update(shared_parts(places.values()))
        facts.update(_out_of_sight(places.values()))
        found = cls(facts=facts, out_of_reach=reach.out_of_reach + hidden, is_whole=reach.is_whole)
        return found, places

    def pack(self, earlier: ScriptState) -> torch.Tensor:
        """Returns this script state and an earlier one of the same run as bytes."""
        changed = {
            path: fact for path, fact in self.facts.items() if earlier.facts.get(path) != fact
        }
        form = {
            "earlier": earlier.facts,
            "changed": changed,
            "gone": [path for path in earlier.facts if path not in self.facts],
            "out_of_reach": [earlier.out_of_reach, self.out_of_reach],
            "is_whole": [earlier.is_whole, self.is_whole],
        }
        data = zlib.compress(json.dumps(form).encode(), level=1)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _out_of_sight(places: Collection[Place]) -> dict[str, str]:
    """Iterators that hide their place and to which a model leads: a forward may take from them.
    From others the script itself takes, in a replay as well."""
    kinds = {type(one.value) for one in places}
    hidden = set(filter(hides_its_place, kinds))
    if not hidden:
        return {}
    models = {kind for kind in kinds if issubclass(kind, nn.Module)}
    below = tuple(f"{one.path}." for one in places if type(one.value) in models)
    found = (one.path for one in places if type(one.value) in hidden)
    return {f"{path}.place": UNSEEN for path in found if path.startswith(below)}


def _large(container: Iterable[Any]) -> list[int]:
    """Numbers among a container's keys or items that may be addresses, if its first one may be."""
    first = next(iter(container), None)
    if type(first) is not int or first <= _ADDRESSES:
        return []
    return [one for one in container if type(one) is int and one > _ADDRESSES]


def reach_of(
    frames: Mapping[str, Any],
    call: Mapping[str, Any] | None = None,
    enter: Collection[str] = (),
) -> Reach:
    """Returns the walk over the script's variables and what the call under way works on.

    Args:
        frames, enter: see `Reach`.
        call: name → what it works on.
    """
    return Reach(frames, enter, at_last={CALL: call or {}}, all_places=True)


def unpack(packed: torch.Tensor) -> tuple[ScriptState, ScriptState]:
    """Returns the earlier script state and the later one of `ScriptState.pack`.

    Raises:
        ValueError: it is not one.
    """
    try:
        form: dict[str, Any] = json.loads(zlib.decompress(packed.numpy().tobytes()))
        earlier = form["earlier"]
        gone = set(form["gone"])
        later = {path: fact for path, fact in earlier.items() if path not in gone}
        later.update(form["changed"])
        first, second = (
            ScriptState(facts=facts, out_of_reach=hidden, is_whole=whole)
            for facts, hidden, whole in zip(
                (earlier, later), form["out_of_reach"], form["is_whole"], strict=True
            )
        )
    except (zlib.error, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a script state: {error}") from error
    return first, second


_CONTENT = re.compile(r"(tensor|array) |\w+ of \d+")
_NOT_PLAIN = "float|complex|Decimal|Fraction"
_ROW = re.compile(rf'= (\[|\{{(?!"": "(bytes|datetime|date|time|timedelta|UUID|{_NOT_PLAIN})"))')
_NUMBER = re.compile(rf'= (-?\d|true|false|\{{"": "({_NOT_PLAIN})")')
_DISTINCT = len("= 12345")
"""Shorter values (0, 1, true) lie in too many places to be known again."""
_DIGITS = re.compile(r"(?<![\w.])\d{3,}(?![\w.])")
"""A number within a row; those of descriptors are too short to be known again there."""
_LONG = 4_096
_LETTERS = 60
"""Of a value in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place at which the two are not the same; None is 'nothing there'."""

    path: str
    recorded: str | None
    live: str | None

    def __str__(self) -> str:
        if is_shared(self.recorded):
            return f"{self.path} is not {self.recorded}"
        if is_shared(self.live):
            return f"{self.path} is {self.live}"
        if self.live is None:
            return f"{self.path} is missing"
        if self.recorded is None:
            return f"{self.path} was not there"
        return f"{self.path} is {_said(self.live)}, not {_said(self.recorded)}"


class Nature:
    """What is another in each process: times, process numbers, names of temporary files.

    Known from the first script state of the recorded run and of this one, both taken before
    anything was
    trained: where single numbers, texts and objects differ there, they do so by nature. Not so
    tensors, arrays, random generators and what lies in a list, a dictionary, a set: a script that
    finds its prepared data draws other numbers than the one that prepared them. Where that is
    certain, no number differs by nature.

    Attributes:
        differing: paths of all that was another before the training.
        data_differ: some of that are data or random numbers, or may be drawn.
        texts: those of the script that differ, as they were and as they are.
    """

    def __init__(
        self, recorded: ScriptState, live: ScriptState, numbers: Mapping[int, int] | None = None
    ) -> None:
        """`numbers`: of processes, descriptors and ports, as recorded and as they are here."""
        both = recorded.facts.keys() & live.facts.keys()
        self.differing = {p for p in both if recorded.facts[p] != live.facts[p]}
        drew_otherwise = RANDOM_NUMBERS in self.differing
        pairs = {path: (recorded.facts[path], live.facts[path]) for path in self.differing}
        single = {p for p, pair in pairs.items() if not any(map(_is_data, pair))}
        self._paths = {
            path for path in single if not (drew_otherwise and any(map(_is_number, pairs[path])))
        }
        self.texts = [texts for path in self._paths for texts in texts_of(*pairs[path])]
        self.data_differ = drew_otherwise or self._paths != self.differing
        self._pairs = {pairs[p] for p in self._paths if min(map(len, pairs[p])) >= _DISTINCT}
        self._numbers = {str(old): str(new) for old, new in (numbers or {}).items()}
        self._only_one_has = recorded.facts.keys() ^ live.facts.keys()

    def explains(self, path: str, recorded: str | None, live: str | None) -> bool:
        """Whether a difference says nothing about the training."""
        if path in self._paths or (recorded, live) in self._pairs:
            return True
        if recorded is None or live is None:
            return path in self._only_one_has
        if recorded.startswith(TEMPORARY) and live.startswith(TEMPORARY):
            return True
        if self._numbers and self._is_renumbered(recorded, live):
            return True
        return any(recorded.replace(*own) == live for own in self.texts)

    def _is_renumbered(self, recorded: str, live: str) -> bool:
        """Whether all that differs are numbers that belong to a process."""
        if recorded[:2] == "= " and self._numbers.get(recorded[2:]) == live[2:]:
            return True
        return (
            len(recorded) < _LONG
            and _DIGITS.sub(lambda n: self._numbers.get(n[0], n[0]), recorded) == live
        )

    @property
    def count(self) -> int:
        return len(self._paths) + len(self._only_one_has)


def is_another_order(one: Difference) -> bool:
    """Whether a container holds what it held in another order, or more or less of it.

    A loop over it, or over something made from it, has gone another way, and what it goes over is
    out of sight: to put the container back does not put the loop back.
    """
    try:
        then, now = (value_of(fact) for fact in (one.recorded or "", one.live or ""))
    except CannotPutBack:
        return False
    if type(then) is not type(now) or not isinstance(then, Collection) or isinstance(then, str):
        return False
    first, second = list(map(repr, then)), list(map(repr, now))
    return len(first) != len(second) or (first != second and sorted(first) == sorted(second))


def differences(recorded: ScriptState, live: ScriptState, nature: Nature) -> list[Difference]:
    """Returns what differs, in the order of the recorded script state; not what differs by nature.

    Where one of them was not whole, what only one of them has is no difference.
    """
    found = []
    whole = recorded.is_whole and live.is_whole
    for path, then in recorded.facts.items():
        now = live.facts.get(path)
        if now == then or (now is None and not whole) or ADDRESS in (then, now):
            continue
        if nature.explains(path, then, now):
            continue
        found.append(Difference(path=path, recorded=then, live=now))
    for path, now in live.facts.items() if whole else ():
        if path not in recorded.facts and not nature.explains(path, None, now):
            found.append(Difference(path=path, recorded=None, live=now))
    return _outermost(found)


def _is_data(fact: str) -> bool:
    """Whether what a fact tells is no time, process number or name."""
    return holds_generator_state(fact) or bool(_CONTENT.match(fact) or _ROW.match(fact))


def _is_number(fact: str) -> bool:
    return fact.startswith("number ") or bool(_NUMBER.match(fact))


def _outermost(found: list[Difference]) -> list[Difference]:
    """Leaves out what lies within something that is missing, was not there, or is another object as
    a whole, and containers whose number of items differs, where the items are named."""
    absent = {
        one.path
        for one in found
        if None in (one.live, one.recorded) and not is_shared(one.live or one.recorded)
    }
    others = {one.path for one in found if same_as(one.live or "") or same_as(one.recorded or "")}
    whole = absent | others
    kept = [one for one in found if not any(own in whole for own in _parents(one.path))]
    around = {_parents(one.path)[-1] for one in kept if one.path in absent and _parents(one.path)}
    return [one for one in kept if one.path in whole or one.path not in around]


def _parents(path: str) -> list[str]:
    return [path[: match.start()] for match in re.finditer(r"(?<=.)[.\[]", path)]


def _said(fact: str) -> str:
    text = fact.removeprefix("= ")
    return text if len(text) <= _LETTERS else text[: _LETTERS - 3] + "..."


_PATH = re.compile(rf"(Pure)?(Posix|Windows)Path |{TEMPORARY}")
_UUID = '= {"": "UUID"'
_FIGURE = re.compile(r"= (\d+)(\.\d+)?")
_LEAST = 4
"""Shorter texts lie in too many places to be known again."""


def texts_of(recorded: str, live: str) -> Iterator[tuple[str, str]]:
    """Yields texts as they were and as they are, from two facts of one place.

    Texts, paths, temporary files and numbers as they are; of a path also the whole one, of a time
    in seconds the whole ones; a UUID with and without its strokes.
    """
    forms = zip(_forms(recorded), _forms(live), strict=False)
    for old, new in forms:
        if old != new and min(len(old), len(new)) >= _LEAST:
            yield old, new


def _forms(fact: str) -> list[str]:
    if fact.startswith('= "'):
        return _of_text(fact[3:-1])
    if path := _PATH.match(fact):
        return _of_text(fact[path.end() :])
    if fact.startswith(_UUID):
        told = uuid.UUID(json.loads(fact[2:])["is"])
        return [str(told), told.hex]
    if number := _FIGURE.fullmatch(fact):
        return [fact[2:], number[1]]
    return []


def _of_text(text: str) -> list[str]:
    return [text, os.path.abspath(text)] if os.sep in text else [text]
