"""No reader matches on the words of an event: what it has to know is in a field (`codes`).

Messages are for people. Whoever looks for a word in one breaks when the sentence is mended.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from supervisor.events.event import HEADER
from supervisor.events.parsing import KINDS

PACKAGE = Path(__file__).parents[1] / "supervisor"

WORDS = {
    "message", "reason", "detail", "said", "fact", "evidence", "risk_reason", "order", "trace",
    "text", "evidence_for", "remedy", "verdict", "sentence", "root_cause_sentence",
}  # fmt: skip
"""Fields in which sentences stand, of events and of what the report makes of them."""
METHODS = {
    "startswith", "endswith", "find", "rfind", "index", "count", "partition", "rpartition", "split",
    "rsplit", "replace", "removeprefix", "removesuffix", "search", "match", "fullmatch", "findall",
}  # fmt: skip
READERS = ("report", "cli", "analysis", "parent", "storage", "notify")

OTHERS_WORDS = {
    "analysis/explain/finding.py": "of the script's exception, which it writes in one line",
}
"""Files that read what others have said, with the reason."""

FILES = [
    path
    for room in READERS
    for path in sorted((PACKAGE / room).rglob("*.py"))
    if str(path.relative_to(PACKAGE)) not in OTHERS_WORDS
]


def said(node: ast.expr, names: Mapping[str, str]) -> str:
    """The field of words that an expression reads, through names, calls, slices and ``or``."""
    match node:
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(attr=name) if name in WORDS:
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))) if name in WORDS:
            return name
        case ast.Subscript(value=inner):
            return said(inner, names)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name if name in WORDS else ""
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return said(inner, names)
        case ast.Call(func=ast.Attribute(value=inner, attr="lower" | "strip" | "rstrip")):
            return said(inner, names)
        case ast.BoolOp(values=values):
            return next((found for each in values if (found := said(each, names))), "")
    return ""


def names_of_words(function: ast.AST) -> dict[str, str]:
    """Local names that hold a field of words."""
    names: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found = said(node.value, names)
            if found:
                names[node.targets[0].id] = found
        if isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
            found = said(node.iter, names)
            if found:
                names[node.target.id] = found
    return names


def is_text(node: ast.expr) -> bool:
    """Whether an expression is words of our own, beside which nothing is worth comparing."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def matches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and field of each place that looks for words in a field of words."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
    found = {place for each in (*functions, tree) for place in _matches(each)}
    yield from sorted(found)


def _matches(function: ast.AST) -> Iterator[tuple[int, str]]:
    names = names_of_words(function) if not isinstance(function, ast.Module) else {}
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                if isinstance(op, (ast.In, ast.NotIn)) and said(right, names):
                    yield node.lineno, said(right, names)
                if isinstance(op, (ast.Eq, ast.NotEq)):
                    for one, other in ((left, right), (right, left)):
                        if said(one, names) and is_text(other):
                            yield node.lineno, said(one, names)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in METHODS:
                for each in (value, *node.args):
                    if said(each, names):
                        yield node.lineno, said(each, names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_reader_looks_for_words_in_a_message(path: Path) -> None:
    found = list(matches(ast.parse(path.read_text(encoding="utf-8"))))

    assert not found, f"{path}: reads words where a field or a code belongs: {found}"


def test_what_is_forbidden_is_found() -> None:
    """The ways in which the readers did it before there were codes."""
    ways = """
if text.reason.startswith("ordered after"): pass
if " became " in event.message: pass
if "not saved" in str(event.get("message")): pass
remedy.remedy.replace(", then resume.", ".")
_PATTERN.search(event["detail"])
re.search("nan", event.reason or "")
if event.evidence[0].startswith("the script"): pass
if event.message == "no checkpoint": pass
event.reason.partition("; ")
def key_of(event):
    text = str(event.message or event.reason or "")
    return "nan" if _NONFINITE.search(text) else ""
def size(attempt):
    return next((_ASKED_FOR.search(text) for text in attempt.evidence), None)
"""
    lines = [line for line, _ in matches(ast.parse(ways))]
    assert lines == [2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 15]


def test_the_fields_of_words_are_those_of_the_events() -> None:
    fields = {each.name for kind in KINDS.values() for each in dataclasses.fields(kind)[HEADER:]}

    assert {"message", "reason", "detail", "evidence", "fact", "risk_reason", "trace"} <= fields
    assert not {"name", "cause", "outcome", "found", "source", "phase", "sign"} & WORDS
