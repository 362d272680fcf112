"""What differs between the census of a checkpoint and the one on arrival."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from supervisor.training_state.census.census import ADDRESS, RANDOM_NUMBERS, Census
from supervisor.training_state.census.facts import (
    TEMPORARY,
    CannotPutBack,
    holds_generator_state,
    same_as,
    value_of,
)
from supervisor.training_state.census.shared_parts import is_shared

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

    Known from the first census of the recorded run and of this one, both taken before anything was
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
        self, recorded: Census, live: Census, numbers: Mapping[int, int] | None = None
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


def differences(recorded: Census, live: Census, nature: Nature) -> list[Difference]:
    """Returns what differs, in the order of the recorded census; not what differs by nature.

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
