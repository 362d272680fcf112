"""Logs of a line a step: JSON lines with or without a prefix, and what trainers print."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from supervisor.analysis.backtest.log_file import LogFile, Row
from supervisor.errors import UsageError

PATTERNS: Mapping[str, str] = {
    "Megatron-LM": r"\biteration\s+(\d+)/\s*(?:\d+|infinity)\s*\|",
    "torchtune": r"^Step (\d+) \| ?(?=\S+:)",
    "torchtitan": r"(?<!validate )\bstep:\s*(\d+)\s+(?=loss:)",
    "nanoGPT": r"^\s*iter (\d+):",
    "llm.c": r"^\s*step\s+(\d+)(?:/\d+)?(?: \||:)(?= (?:train )?loss:? \S+ [(|])",
    "llm.c's main.log": r"^s:(\d+) (?=trl:)",
    "modded-nanogpt": r"^step:(\d+)/\d+ (?=train_loss:)",
    "build-nanogpt": r"^(\d+) (?=train \S+$)",
}
"""Trainer → what a line with a step begins with. Behind it every ``name: number`` counts (also
``name number`` and ``name=number``). docs/backtest.md shows a line of each."""

_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|(?:\d{1,3}(?:,\d{3})+|\d+)?\.?\d+(?:e[-+]?\d+)?|\d+\.)"
_PAIR = re.compile(rf"([a-z_][\w/ .-]*?)(?:\s*[:=]\s*\[?|\s+)({_NUMBER})(?![\w.])", re.IGNORECASE)
_EPOCH = re.compile(r"\bepochs?[\s:=#(\[]*(\d+)(?![\d.])", re.IGNORECASE)
_COUNTER = re.compile(
    r"\b(?:global_?)?(?:step|iter|iteration|batch|update)(?:s|es)?[\s:=#(\[]*(?:\d+-)?(\d+)(?![\d.])",
    re.IGNORECASE,
)
_OTHER = re.compile(r"[^\d{]*\b(?:val|valid|validation|eval|evaluation|test|dev)\b", re.IGNORECASE)
_OF_EPOCH = re.compile(r"(\d+)\s*/\s*\d+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"^\s*\[(?:rank|default)?(\d+)\]:")
_BARE = re.compile(r"(?<=: )(nan|-?inf)\b")

MANY = 50
"""Lines of one kind that settle of what kind a log is."""

Reader = Callable[[str], "dict[str, Any] | None"]
"""The values of a line; none if it is of another kind, empty if it is broken."""


def read_lines(file: LogFile) -> Iterator[Row]:
    """Yields the steps of a log of lines, of the kind of which it has most.

    JSON objects may stand behind a prefix (fairseq) or be printed by Python (transformers'
    console). Lines of other output are passed over; a line that begins like a step and cannot be
    read is broken. Of several ranks the first counts.

    Raises:
        UsageError: no line is of a kind that is known.
    """
    read = _kind(file)
    if read is None:
        raise UsageError(
            f"{file.path}: no log that is known: give CSV, JSON, an event file, or the console "
            f"output of a trainer, with a step or an epoch and numbers in a line"
        )
    why = "no whole JSON object" if read is _json_row else "no value after the step"
    first_rank: str | None = None
    for number, rank, line in _lines(file):
        if first_rank not in (None, rank):
            continue
        row = read(line)
        if row:
            first_rank = rank
            yield number, row
        elif row is not None:
            file.remarks.broken_line(number, why)


def _kind(file: LogFile) -> Reader | None:
    """How most of its lines are read.

    The first line that could be read does not tell: logs begin with the script itself
    (modded-nanogpt), with settings, or with the scores of the untrained network.
    """
    found: Counter[Reader] = Counter()
    for _, _, line in _lines(file):
        read = next((read for read in _READERS if read(line)), None)
        if read is not None:
            found[read] += 1
            if found[read] == MANY and read in _TRAINERS:
                return read
    if len(found) > 1:
        del found[_numbers_row]
    return max(found, key=found.__getitem__, default=None)


def _lines(file: LogFile) -> Iterator[tuple[int, str, str]]:
    """The number of each line, its rank (empty where none is named), and its text."""
    for number, raw in enumerate(file.lines(), 1):
        line = _COLOUR.sub("", raw) if "\x1b" in raw else raw
        rank = _RANK.match(line)
        yield number, rank[1] if rank else "", line[rank.end() :].lstrip() if rank else line


def _trainer_row(begin: re.Pattern[str], line: str) -> dict[str, Any] | None:
    found = begin.search(line)
    if not found:
        return None
    pairs = _pairs(line, found.end())
    return {"step": found[1], **pairs} if pairs else {}


def _json_row(line: str) -> dict[str, Any] | None:
    if _OTHER.match(line):
        return None
    found = _object(line)
    return found if found or line.lstrip().startswith("{") or '{"' in line else None


def _loss_row(counters: frozenset[str], line: str) -> dict[str, Any] | None:
    """A line of an unknown trainer: these counters, and a loss among numbers with names.

    Evaluations and sums of whole epochs differ from the steps of a training in their counters.
    """
    row = _numbers_row(line) if "loss" in line.lower() else None
    return row if row and counters == {"epoch", "step"} & row.keys() else None


def _numbers_row(line: str) -> dict[str, Any] | None:
    """Such a line with any counter, and without a name that says loss."""
    if _OTHER.match(line):
        return None
    epoch, counter = _EPOCH.search(line), _COUNTER.search(line)
    if epoch and not counter:  # Epoch: [3][40/390], or | epoch 3 | 40/ 390 batches |
        counter = _OF_EPOCH.search(line, epoch.end())
    if not (epoch or counter):
        return None
    found: dict[str, Any] = {
        name: value
        for name, value in _pairs(line, 0).items()
        if not (_EPOCH.search(f"{name} {value}") or _COUNTER.search(f"{name} {value}"))
    }
    if found and epoch:
        found["epoch"] = epoch[1]
    if found and counter:
        found["step"] = counter[1]
    return found or None


def _pairs(line: str, start: int) -> dict[str, str]:
    return {name: value.replace(",", "") for name, value in _PAIR.findall(line, start)}


_TRAINERS: tuple[Reader, ...] = (
    *(partial(_trainer_row, re.compile(pattern)) for pattern in PATTERNS.values()),
    _json_row,
)
_READERS: tuple[Reader, ...] = (
    *_TRAINERS,
    *(partial(_loss_row, frozenset(names)) for names in (["epoch", "step"], ["step"], ["epoch"])),
    _numbers_row,
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
        if _kind(file) is not None:  # what looked like JSON were settings, printed before the log
            yield from read_lines(file)
            return
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
