"""Logs of a line a step: JSON lines with or without a prefix, and what trainers print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from supervisor.analysis.backtest.log_file import LogFile, Row
from supervisor.errors import UsageError

PATTERNS: Mapping[str, str] = {
    "Megatron-LM": r"\biteration\s+(\d+)/\s*(?:\d+|infinity)\s*\|",
    "torchtune": r"^Step (\d+) \| ?(?=\S+:)",
    "torchtitan": r"(?<!validate )\bstep:\s*(\d+)\s+(?=loss:)",
    "nanoGPT": r"^\s*iter (\d+):",
    "llm.c": r"^\s*step\s+(\d+)(?:/\d+)?(?: \||:)(?= (?:train )?loss \S+ [(|])",
    "llm.c's main.log": r"^s:(\d+) (?=trl:)",
    "modded-nanogpt": r"^step:(\d+)/\d+ (?=train_loss:)",
}
"""Trainer → what a line with a step begins with. Behind it every ``name: number`` counts (also
``name number`` and ``name=number``). docs/backtest.md shows a line of each."""

_PATTERNS = {trainer: re.compile(pattern) for trainer, pattern in PATTERNS.items()}
_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|(?:\d{1,3}(?:,\d{3})+|\d+)?\.?\d+(?:e[-+]?\d+)?|\d+\.)"
_PAIR = re.compile(rf"([a-z_][\w/ .-]*?)(?:\s*[:=]\s*|\s+)({_NUMBER})(?![\w.])", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"^\s*\[(?:rank|default)?(\d+)\]:")
_BARE = re.compile(r"(?<=: )(nan|-?inf)\b")


def read_lines(file: LogFile) -> Iterator[Row]:
    """Yields the steps of a log of lines; its first step tells of which kind it is.

    JSON objects may stand behind a prefix (fairseq) or be printed by Python (transformers'
    console). Lines of other output are passed over; a line that begins like a step and cannot be
    read is broken. Of several ranks the first counts.

    Raises:
        UsageError: no line is of a kind that is known.
    """
    kind: re.Pattern[str] | None = None
    is_json = False
    first_rank = ""
    for number, raw in enumerate(file.lines(), 1):
        line = _COLOUR.sub("", raw) if "\x1b" in raw else raw
        if rank := _RANK.match(line):
            line = line[rank.end() :].lstrip()
        if kind is None and not is_json:
            kind = next((pattern for pattern in _PATTERNS.values() if pattern.search(line)), None)
            is_json = kind is None and bool(_object(line))
            if kind is None and not is_json:
                continue
            first_rank = rank[1] if rank else ""
        if rank and rank[1] != first_rank:
            continue
        if kind is None:
            found = _object(line)
            if found:
                yield number, found
            elif line.lstrip().startswith("{") or '{"' in line:
                file.remarks.broken_line(number, "no whole JSON object")
        elif begin := kind.search(line):
            pairs = {
                name: value.replace(",", "") for name, value in _PAIR.findall(line, begin.end())
            }
            if pairs:
                yield number, {"step": begin[1], **pairs}
            else:
                file.remarks.broken_line(number, "no value after the step")
    if kind is None and not is_json:
        raise UsageError(
            f"{file.path}: no log that is known: give CSV, JSON, an event file, or the console "
            f"output of {', '.join(PATTERNS)}"
        )


def is_document(file: LogFile) -> bool:
    """Whether the file is one JSON value, not a line of JSON a step."""
    lines = [line for line in file.first_lines() if line.strip()]
    if not lines:  # one line, longer than the head
        return bool(re.match(rb"\s*[{[]", file.head))
    if not re.match(r"\s*(\{|\[\s*(\{|$))", lines[0]):
        return False
    return not _object(lines[0]) or (len(lines) == 1 and bool(_series(json.loads(lines[0]))))


def read_document(file: LogFile) -> Iterator[Row]:
    """Yields the steps of one JSON document: ``trainer_state.json``, a list, or lists by name.

    Raises:
        UsageError: it is no JSON, or no list of steps is in it.
    """
    try:
        document = json.loads("\n".join(file.lines()))
    except ValueError as error:
        raise UsageError(f"{file.path}: is no whole JSON document: {error}: repair it") from error
    rows = _series(document)
    if not rows:
        raise UsageError(
            f"{file.path}: no list of steps in this JSON document: give one of objects"
        )
    file.remarks.unit = "entry"
    for number, row in enumerate(rows):
        yield number, flat(row)


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"train": {"loss": 1}}`` → ``{"train/loss": 1}``."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _object(line: str) -> dict[str, Any]:
    """The JSON object (or printed dictionary) in a line; empty without one."""
    start, end = line.find("{"), line.rfind("}")
    if start < 0 or end < start:
        return {}
    text = line[start : end + 1]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        if "{'" not in text:
            return {}
        try:
            found = json.loads(_BARE.sub(_as_json, text.replace("'", '"')))
        except (ValueError, RecursionError):
            return {}
    return flat(found) if isinstance(found, dict) else {}


def _as_json(bare: re.Match[str]) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[bare[1]]


def _series(document: Any) -> list[dict[str, Any]]:
    """The longest list of steps in a document, as a list of objects."""
    if isinstance(document, list):
        return [entry for entry in document if isinstance(entry, dict)]
    if not isinstance(document, dict):
        return []
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    inside = [rows for value in document.values() if (rows := _series(value))]
    if inside:
        return max(inside, key=len)
    columns = {n: v for n, v in lists.items() if v and not isinstance(v[0], (list, dict))}
    count = max(map(len, columns.values()), default=0)
    return [{n: v[i] for n, v in columns.items() if i < len(v)} for i in range(count)]
