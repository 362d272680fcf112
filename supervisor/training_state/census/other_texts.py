"""What stands in names that a script makes of something that is another in each process."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator

from supervisor.training_state.census.facts import TEMPORARY

_PATH = re.compile(rf"(Pure)?(Posix|Windows)Path |{TEMPORARY}")
_UUID = '= {"": "UUID"'
_NUMBER = re.compile(r"= (\d+)(\.\d+)?")
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
    if number := _NUMBER.fullmatch(fact):
        return [fact[2:], number[1]]
    return []


def _of_text(text: str) -> list[str]:
    return [text, os.path.abspath(text)] if os.sep in text else [text]
