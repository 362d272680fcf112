"""Every kind of event is what it was after a journal, and no line is a traceback."""

from __future__ import annotations

import ast
import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import codes
from supervisor.events import run_events, state_events, step_events
from supervisor.events.event import HEADER, JournalEvent, UnknownEvent
from supervisor.events.parsing import KINDS, parse_event
from supervisor.storage.files.json_files import parse_line, to_line

PACKAGE = Path(__file__).parents[2] / "supervisor"
INTEGERS = st.integers(-(2**62), 2**62)
PLAIN = st.one_of(st.none(), st.booleans(), INTEGERS, st.text(max_size=5))
MAPPINGS = st.dictionaries(st.text(max_size=4), PLAIN, max_size=2)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "int": INTEGERS,
    "float": st.floats(),
    "str": st.text(max_size=10),
    "bool": st.booleans(),
    "tuple[str, ...]": st.lists(st.text(max_size=5), max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(INTEGERS, max_size=3).map(tuple),
    "Mapping[str, float]": st.dictionaries(st.text(max_size=4), st.floats(), max_size=2),
    "Mapping[str, Any]": MAPPINGS,
    "tuple[Mapping[str, Any], ...]": st.lists(MAPPINGS, max_size=2).map(tuple),
}
PROMISED: dict[str, set[str]] = {
    "corruption_found": {"tensor", "elements", "value", "before", "bound", "bit", "healed"},
    "action": {"name", "rung", "cause", "cost_s", "outcome"},
    "worker_exited": {"cause", "returncode", "signum", "last_step", "evidence"},
    "resumed": {"from_step", "exactness", "reason"},
    "healed": {"from_step", "waited_s", "answered"},
    "rollback": {"from_step", "to_step"},
}
"""What each line of a kind has, whatever its value: programs that read a journal rely on it."""
OTHER_KINDS = (
    *("run_started", "attempt_started", "state_found", "alert", "risk", "action_undone"),
    *("checkpoint_saved", "checkpoint_stable", "checkpoint_rejected", "update_skipped"),
    *("batch_captured", "hang_detected", "restart", "signal_received", "warning", "gave_up"),
    "run_finished",
)
HEAD = ("time", "attempt", "rank", "step", "kind")


def values_of(annotation: str) -> st.SearchStrategy[Any]:
    name = annotation.removesuffix(" | None")
    code = vars(codes).get(name)
    found = st.sampled_from(list(code)) if code else BY_TYPE[name]
    return st.one_of(st.none(), found) if name != annotation else found


@st.composite
def events(draw: st.DrawFn) -> JournalEvent:
    kind = draw(st.sampled_from(sorted(KINDS)))
    own = dataclasses.fields(KINDS[kind])[HEADER:]
    given_ = {each.name: draw(values_of(str(each.type))) for each in own}
    return KINDS[kind](
        time=draw(st.text(max_size=5)),
        attempt=draw(st.none() | INTEGERS),
        rank=draw(st.none() | INTEGERS),
        step=draw(st.none() | INTEGERS),
        left_out=draw(st.integers(0, 9)),
        **given_,
    )


@settings(max_examples=400, deadline=None)
@given(event=events())
def test_an_event_is_read_as_it_was_written(event: JournalEvent) -> None:
    line = parse_line(to_line(event.to_json()))

    assert line is not None
    assert parse_event(line) == event


JUNK = st.recursive(
    st.one_of(PLAIN, st.floats()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
FIELDS = sorted({each.name for kind in KINDS.values() for each in dataclasses.fields(kind)})


@settings(max_examples=300, deadline=None)
@given(
    kind=st.one_of(st.sampled_from(sorted(KINDS)), JUNK),
    fields=st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=8),
)
def test_any_object_is_an_event(kind: Any, fields: dict[str, Any]) -> None:
    event = parse_event({**fields, "kind": kind})

    assert event.times >= 1
    line = to_line(event.to_json())
    again = parse_event(json.loads(line))
    assert json.loads(to_line(again.to_json())) == json.loads(line)


def test_what_is_not_known_is_kept() -> None:
    other = parse_event({"kind": "explosion", "step": 4, "size": 3})
    coded = parse_event({"kind": "action", "outcome": "improved", "colour": "red"})

    assert isinstance(other, UnknownEvent)
    assert other.to_json()["kind"] == "explosion"
    assert (other.step, other.extra) == (4, {"size": 3})
    assert coded.extra == {"outcome": "improved", "colour": "red"}
    assert coded.outcome is None  # type: ignore[attr-defined]


def test_every_kind_is_listed_here() -> None:
    assert set(KINDS) == {*PROMISED, *OTHER_KINDS}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_line_has_the_fields_that_are_promised(kind: str) -> None:
    line = parse_event({"kind": kind}).to_json()

    assert tuple(line)[: len(HEAD)] == HEAD
    assert PROMISED.get(kind, set()) <= set(line)
    own = dataclasses.fields(KINDS[kind])[HEADER:]
    always = {each.name for each in own if each.default is dataclasses.MISSING}
    assert set(line) == {*HEAD, *always}


def test_every_code_has_one_value_and_no_sentence() -> None:
    found = [each for each in vars(codes).values() if isinstance(each, enum.EnumMeta)]
    for code in (each for each in found if each.__module__ == codes.__name__):
        for member in code:
            assert len(str(member.value).split()) <= 3, member  # type: ignore[attr-defined]


def test_the_room_needs_nothing_heavy() -> None:
    """Every command that looks at a run imports it."""
    import subprocess
    import sys

    line = "import sys, supervisor.events.parsing; print(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True
    ).stdout
    for heavy in ("numpy", "torch", "omegaconf", "yaml", "rich", "hypothesis"):
        assert f"'{heavy}'" not in loaded, heavy


def test_lines_of_the_first_version_are_read() -> None:
    old = json.dumps(
        {
            "time": "2026-01-01T00:00:00+00:00",
            "attempt": 1,
            "rank": 0,
            "step": 3,
            "kind": "worker_exited",
            "cause": "user_error",
            "returncode": 1,
            "evidence": "the script ended with sys.exit(1)",
        }
    )

    event = parse_event(json.loads(old))

    assert event.cause is codes.ExitCause.USER_ERROR  # type: ignore[attr-defined]
    assert event.evidence == ("the script ended with sys.exit(1)",)  # type: ignore[attr-defined]
    assert event.sign is None  # type: ignore[attr-defined]


CLASSES = {
    name: each
    for module in (run_events, state_events, step_events)
    for name, each in vars(module).items()
    if isinstance(each, type) and each.__module__ == module.__name__
}


def test_every_class_of_an_event_is_a_kind() -> None:
    assert set(CLASSES.values()) == set(KINDS.values())


def test_every_kind_is_written_by_somebody_as_its_class() -> None:
    """And nothing else is: `Journal.write` takes events alone, which mypy holds."""
    made = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                made.add(node.func.id)

    assert set(CLASSES) - made == set()
