"""A JSON file becomes a record, or an error that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from supervisor.storage.files.json_files import build_record


@dataclass(frozen=True)
class Sample:
    pid: int
    name: str = ""
    seconds: float = 0.0
    words: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    code: int | None = None
    kind: str = field(default="script", metadata={"one_of": ("script", "module")})


def test_fields_of_their_types_become_a_record() -> None:
    value = {"pid": 7, "seconds": 2, "words": ["a"], "code": None, "later": 1}

    assert build_record(Sample, value) == Sample(pid=7, seconds=2, words=("a",))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object"),
        ({}, "pid is missing"),
        ({"pid": "7"}, "pid: expected a whole number, got '7'"),
        ({"pid": True}, "pid: expected a whole number"),
        ({"pid": 2**64}, "pid: 18446744073709551616... is too large"),
        ({"pid": 1, "name": 5}, "name: expected text, got 5"),
        ({"pid": 1, "words": "300"}, "words: expected a list, got '300'"),
        ({"pid": 1, "words": ["a", 3]}, r"words\[1\]: expected text, got 3"),
        ({"pid": 1, "versions": {"torch": 2}}, "versions.torch: expected text"),
        ({"pid": 1, "kind": "notebook"}, "kind: 'notebook' is none of script, module"),
    ],
)
def test_a_wrong_field_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_record(Sample, value)
