"""What differs between the census of a checkpoint and the one on arrival."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass

from supervisor.training_state.census.census import ADDRESS, RANDOM_NUMBERS, Census
from supervisor.training_state.census.facts import CannotPutBack, holds_generator_state, value_of
from supervisor.training_state.census.plain_containers import are_numbers

_ROW = 8
"""Items of a container that is no list of times, process numbers or names of temporary files."""
_NUMBERS = _ROW
"""The same where all items are numbers."""
_CONTENT = re.compile(r"tensor |array |(list|tuple|set|frozenset|deque) of \d+ [0-9a-f]{16}$")
_DISTINCT = len("= 12345")
"""Shorter values (0, 1, true) lie in too many places to be known again."""
_LETTERS = 60
"""Of a value in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place at which the two are not the same; None is 'nothing there'."""

    path: str
    recorded: str | None
    live: str | None

    def __str__(self) -> str:
        if self.live is None:
            return f"{self.path} is missing"
        if self.recorded is None:
            return f"{self.path} was not there"
        return f"{self.path} is {_said(self.live)}, not {_said(self.recorded)}"


class Nature:
    """What is another in each process: times, process numbers, names of temporary files.

    Known from the first census of the recorded run and of this one, both taken before anything was
    trained: what differs there differs by nature. Not so tensors, arrays, random generators and
    rows of values: a script that finds its prepared data draws other numbers than the one that
    prepared them. Where that is certain, no number differs by nature.
    """

    def __init__(self, recorded: Census, live: Census) -> None:
        both = recorded.facts.keys() & live.facts.keys()
        differing = {p for p in both if recorded.facts[p] != live.facts[p]}
        drew_otherwise = RANDOM_NUMBERS in differing
        self._paths = {
            path for path in differing if not _is_data(recorded.facts[path], drew_otherwise)
        }
        self._paths |= recorded.facts.keys() ^ live.facts.keys()
        pairs = {(recorded.facts[p], live.facts[p]) for p in self._paths & both}
        self._pairs = {pair for pair in pairs if min(map(len, pair)) >= _DISTINCT}
        self._texts = [
            pair for pair in map(_texts, pairs) if pair is not None and min(map(len, pair)) > 3
        ]

    def explains(self, path: str, recorded: str | None, live: str | None) -> bool:
        """Whether a difference says nothing about the training."""
        if path in self._paths or (recorded, live) in self._pairs:
            return True
        pair = _texts((recorded, live))
        return pair is not None and any(pair[0].replace(*own) == pair[1] for own in self._texts)

    @property
    def count(self) -> int:
        return len(self._paths)


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


def _is_data(fact: str, drew_otherwise: bool) -> bool:
    """Whether what a fact tells is no time, process number or name.

    Args:
        drew_otherwise: before its training this process drew other random numbers than the recorded
            one, so that any number may come from them.
    """
    if holds_generator_state(fact) or _CONTENT.match(fact):
        return True
    try:
        value = value_of(fact)
    except CannotPutBack:
        return False
    if isinstance(value, (bool, int, float, complex)):
        return drew_otherwise
    if not isinstance(value, (list, tuple, set, frozenset, dict, collections.deque)):
        return False
    if len(value) >= (1 if drew_otherwise else _NUMBERS) and are_numbers(value):
        return True
    return not isinstance(value, dict) and len(value) >= _ROW


def _outermost(found: list[Difference]) -> list[Difference]:
    """Leaves out what lies within something that is missing or was not there as a whole, and
    containers whose number of items differs, where the items are named."""
    absent = {one.path for one in found if one.live is None or one.recorded is None}
    kept = [one for one in found if not any(own in absent for own in _parents(one.path))]
    around = {_parents(one.path)[-1] for one in kept if one.path in absent and _parents(one.path)}
    return [one for one in kept if one.path in absent or one.path not in around]


def _parents(path: str) -> list[str]:
    return [path[: match.start()] for match in re.finditer(r"(?<=.)[.\[]", path)]


def _texts(pair: tuple[str | None, str | None]) -> tuple[str, str] | None:
    values = []
    for fact in pair:
        try:
            value = None if fact is None else value_of(fact)
        except CannotPutBack:
            return None
        if not isinstance(value, str):
            return None
        values.append(value)
    return values[0], values[1]


def _said(fact: str) -> str:
    text = fact.removeprefix("= ")
    return text if len(text) <= _LETTERS else text[: _LETTERS - 3] + "..."
