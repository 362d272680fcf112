"""From a line of a journal, in whatever state it is, to its event."""

from __future__ import annotations

import enum
import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from supervisor import codes
from supervisor.events import run_events, state_events, step_events
from supervisor.events.event import HEADER, JournalEvent, UnknownEvent

KINDS: dict[str, type[JournalEvent]] = {
    each.KIND: each
    for each in (
        run_events.RunStarted,
        run_events.AttemptStarted,
        state_events.StateFound,
        step_events.AlertEvent,
        step_events.RiskEvent,
        step_events.ActionEvent,
        step_events.ActionUndone,
        state_events.CheckpointSaved,
        state_events.CheckpointStable,
        state_events.CheckpointRejected,
        step_events.RollbackEvent,
        step_events.UpdateSkipped,
        step_events.BatchCaptured,
        step_events.CorruptionFound,
        run_events.HangDetected,
        run_events.WorkerExited,
        run_events.RestartEvent,
        state_events.Resumed,
        state_events.Healed,
        run_events.SignalReceived,
        state_events.WarningEvent,
        run_events.GaveUp,
        run_events.RunFinished,
    )
}
"""Every kind of the journal by its name."""


def parse_event(line: Mapping[str, Any]) -> JournalEvent:
    """Returns the event that a line holds; what it lacks is None, NaN or empty. Never fails."""
    kind = _text(line.get("kind"))
    found = KINDS.get(kind)
    known: Mapping[str, tuple[Callable[[Any], Any], bool]] = _readers(kind) if found else {}
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, raw in line.items():
        if name in known:
            values[name] = known[name][0](raw)
            if values[name] is None and raw is not None:
                extra[name] = raw
        elif name not in _HEAD:
            extra[name] = raw
    for name, (read, has_default) in known.items():
        if name not in values and not has_default:
            values[name] = read(None)
    head: dict[str, Any] = {name: read(line.get(name)) for name, read in _HEAD.items()}
    head["left_out"] = head["left_out"] or 0
    del head["kind"]
    if found is None:
        return UnknownEvent(named=kind, extra=extra, **head)
    return found(extra=extra, **head, **values)


@functools.cache
def _readers(kind: str) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """Field → how its value is read, and whether it has a default."""
    return {
        each.name: (_reader(str(each.type)), each.default is not MISSING)
        for each in fields(KINDS[kind])[HEADER:]
    }


def _reader(annotation: str) -> Callable[[Any], Any]:
    """The annotation of a field says how it is read. KeyError: there is no such reader yet."""
    if annotation in _BY_TYPE:
        return _BY_TYPE[annotation]
    code: type[enum.Enum] = vars(codes)[annotation.removesuffix(" | None")]
    return functools.partial(_code, {member.value: member for member in code})


def _code(known: Mapping[str, enum.Enum], value: Any) -> enum.Enum | None:
    return known.get(value) if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value
    number = _number(value)
    return int(number) if math.isfinite(number) else None


def _number(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _known_number(value: Any) -> float | None:
    return _number(value) if isinstance(value, (int, float, str)) else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return "" if value is None else str(value)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(_text(item) for item in value)
    return (_text(value),) if value else ()


def _integers(value: Any) -> tuple[int, ...]:
    found = map(_integer, value) if isinstance(value, (list, tuple)) else ()
    return tuple(number for number in found if number is not None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> tuple[Mapping[str, Any], ...]:
    items = value if isinstance(value, (list, tuple)) else ()
    return tuple(dict(item) for item in items if isinstance(item, Mapping))


def _numbers(value: Any) -> Mapping[str, float]:
    return {name: _number(item) for name, item in _mapping(value).items()}


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "int | None": _integer,
    "float": _number,
    "float | None": _known_number,
    "str": _text,
    "str | None": _optional(_text),
    "bool": bool,
    "bool | None": _flag,
    "tuple[str, ...]": _texts,
    "tuple[str, ...] | None": _optional(_texts),
    "tuple[int, ...]": _integers,
    "tuple[int, ...] | None": _optional(_integers),
    "Mapping[str, float]": _numbers,
    "Mapping[str, Any]": _mapping,
    "Mapping[str, Any] | None": _optional(_mapping),
    "tuple[Mapping[str, Any], ...]": _mappings,
}

_HEAD: dict[str, Callable[[Any], Any]] = {
    "kind": _text,
    "time": _text,
    "attempt": _integer,
    "rank": _integer,
    "step": _integer,
    "left_out": _integer,
}
