"""What may stand in a policy or a config: keys, types, limits, names of actions and causes.

The schemas are the dataclasses of `supervisor.settings`; nothing is listed twice but the limits.
Settings of single detectors are checked by the detectors themselves.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from supervisor.records import Cause
from supervisor.settings import HEALINGS, LATE_READS, NOTICE_EVENTS, SECURITIES

KeyPath = tuple[str | int, ...]

ACTION_NAMES = (
    "skip_update",
    "checkpoint",
    "cut_lr",
    "limit_lr",
    "tighten_clip",
    "adaptive_clip",
    "fp32_fallback",
    "fp32_modules",
    "trial_step",
    "rollback",
    "back_to_start",
    "reset_optimizer",
    "skip_data",
    "checkpoint_activations",
    "smaller_batch",
    "restart",
    "stop",
)
EARLIER_ACTIONS = ("reinstate", "repair_optimizer")
"""Of older policies; they are left out (docs/design/actions.md)."""
CAUSE_NAMES = tuple(cause.value for cause in Cause)
EARLIER_CAUSES = ("instability",)
"""Of older policies: nothing is found under them any more (docs/design/rules.md)."""
FALLBACK_NAMES = ("approximate", "start")
EARLIER_FALLBACKS = ("first_step",)
"""Of older configs: what it did is part of each fast-forward now."""

_WORDS: Mapping[tuple[str, str], tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    ("by_cause", ""): ("action", ACTION_NAMES, EARLIER_ACTIONS),
    ("rungs", "actions"): ("action", ACTION_NAMES, EARLIER_ACTIONS),
    ("rungs", "causes"): ("cause", CAUSE_NAMES, EARLIER_CAUSES),
    ("notify", "events"): ("event", NOTICE_EVENTS, ()),
    ("notify", "security"): ("security", SECURITIES, ()),
    ("restart", "healing"): ("healing", HEALINGS, ()),
    ("device", "late_reads"): ("word", LATE_READS, ()),
    ("fast_forward", "fallbacks"): ("fallback", FALLBACK_NAMES, EARLIER_FALLBACKS),
}
"""Section and field → what its texts are, those that are known, and those of earlier versions."""

LIMITS: Mapping[str, tuple[float, float]] = {
    "at": (0.0, 1.0),
    "alarm_threshold": (0.0, 1.0),
    "warn_threshold": (0.0, 1.0),
    "max_overhead": (0.0, 1.0),
    "lr_factor": (0.0, 1.0),
    "lr_factor_min": (0.0, 1.0),
    "clip_factor": (0.0, 1.0),
    "careful_lr_factor": (0.0, 1.0),
    "spike_factor": (1.0, math.inf),
    "every_steps": (1, math.inf),
    "log_mib": (0.0625, math.inf),
    "alerts_at_once": (1, math.inf),
    "treatments_at_once": (1, math.inf),
    "keep_last": (1, math.inf),
    "crash_limit": (1, math.inf),
    "depths": (1, math.inf),
    "hang_timeout_s": (0.01, math.inf),  # 0 would call every training hung
    "first_step_timeout_s": (0.01, math.inf),
    "idle_timeout_s": (0.01, math.inf),
    "seed": (0, 2**32 - 1),
    "metrics_port": (0, 65535),
}
"""Field → smallest and largest value; every other number must not be negative.

2**32 - 1 is the largest seed that NumPy takes.
"""

LARGEST_WHOLE = 2**63 - 1
"""Of what is recorded, counted or packed, in whatever file."""

_KINDS: Mapping[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("text", (str, int, float)),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The first thing that is wrong: under which key, and what (with what to write instead)."""

    path: KeyPath
    message: str


def find_problem(value: Any, schema: Any, path: KeyPath = ()) -> Problem | None:
    """Returns what is wrong with `value`, read under `path`, as an instance of type `schema`.

    Strings with an interpolation (``${...}``) are let through: OmegaConf checks what they become.
    """
    return next(_problems(value, schema, path), None)


def schema_at(schema: Any, path: KeyPath) -> Any:
    """Returns the type that belongs under `path`; a `Problem` when there is no such key."""
    current = schema
    walked: KeyPath = ()
    for part in path:
        walked = (*walked, part)
        current = _bare(current)
        origin = typing.get_origin(current)
        if current is Any:
            return Any
        if dataclasses.is_dataclass(current):
            hints = typing.get_type_hints(current)
            if part not in hints:
                return Problem(path=walked, message=unknown_key(str(part), current, schema))
            current = hints[part]
        elif origin is list and isinstance(part, int):
            (current,) = typing.get_args(current)
        elif origin is dict:
            current = typing.get_args(current)[1]
        else:
            return Problem(path=walked, message=f"there is nothing below {show(walked[:-1])}")
    return current


def unknown_key(key: str, schema: Any, root: Any) -> str:
    """Returns the sentence about a key that `schema` does not have, with the nearest right one."""
    fields = [field.name for field in dataclasses.fields(schema)]
    hint = did_you_mean(key, fields)
    if not hint:
        same = [leaf for leaf in leaf_keys(root) if leaf.rpartition(".")[2] == key]
        hint = did_you_mean(key, leaf_keys(root)) if not same else f"; did you mean {same[0]}?"
    return f"unknown key{hint or '; known here: ' + ', '.join(fields)}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean x?`` for the nearest of `known`, or nothing if none is near."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def leaf_keys(schema: Any, prefix: str = "") -> list[str]:
    """Returns every dotted key of a schema, sections included only through their fields."""
    keys = []
    for name, hint in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(_bare(hint)):
            keys += leaf_keys(_bare(hint), f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def show(path: KeyPath) -> str:
    """Returns a path as people write it: ``rungs[2].actions``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _bare(hint: Any) -> Any:
    """Optional[X] as X; other types as they are."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


def _problems(value: Any, schema: Any, path: KeyPath, root: Any = None) -> Iterator[Problem]:
    kind, root = _bare(schema), root or schema
    if schema is Any or (isinstance(value, str) and "${" in value):
        return
    if value is None and kind is not schema:
        return
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        yield from _section_problems(value, kind, path, root)
    elif origin is dict:
        yield from _mapping_problems(value, typing.get_args(kind)[1], path, root)
    elif origin is list:
        yield from _list_problems(value, typing.get_args(kind)[0], path, root)
    else:
        yield from _scalar_problems(value, kind, path)


def _section_problems(value: Any, schema: Any, path: KeyPath, root: Any) -> Iterator[Problem]:
    hints = typing.get_type_hints(schema)
    if not isinstance(value, Mapping):
        yield Problem(path=path, message=_expected(f"a section with {', '.join(hints)}", value))
        return
    for key, item in value.items():
        if key not in hints:
            yield Problem(path=(*path, str(key)), message=unknown_key(str(key), schema, root))
        else:
            yield from _problems(item, hints[key], (*path, key), root)


def _mapping_problems(value: Any, item_type: Any, path: KeyPath, root: Any) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(path=path, message=_expected("a section of names", value))
        return
    for key, item in value.items():
        if path[-1:] == ("by_cause",) and key not in (*CAUSE_NAMES, *EARLIER_CAUSES):
            yield Problem(path=(*path, str(key)), message=_unknown("cause", str(key), CAUSE_NAMES))
        yield from _problems(item, item_type, (*path, str(key)), root)


def _list_problems(value: Any, item_type: Any, path: KeyPath, root: Any) -> Iterator[Problem]:
    if not isinstance(value, (list, tuple)):
        yield Problem(path=path, message=_expected("a list", value))
        return
    for index, item in enumerate(value):
        yield from _problems(item, item_type, (*path, index), root)


def _scalar_problems(value: Any, kind: Any, path: KeyPath) -> Iterator[Problem]:
    words, accepted = _KINDS[kind]
    names = [part for part in path if isinstance(part, str)] or [""]
    section, field = names[0], names[-1]
    if (section, field) == ("restart", "healing") and str(value) in ("True", "False"):
        return  # YAML's `on` and `off`
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        yield Problem(path=path, message=_expected(words, value))
    elif isinstance(value, (int, float)) and kind in (int, float):
        low, high = LIMITS.get(field, (0, math.inf))
        if kind is int:
            high = min(high, LARGEST_WHOLE)
        if not low <= value <= high:
            is_open = high == math.inf or (high == LARGEST_WHOLE and value < low)
            limit = f"at least {low:g}" if is_open else f"from {low:g} to {high:g}"
            yield Problem(path=path, message=_expected(f"{words} {limit}", value))
    elif kind is str:
        what, known, earlier = _WORDS.get(
            (section, "" if section == "by_cause" else field), ("", (), ())
        )
        if what and value not in (*known, *earlier):
            yield Problem(path=path, message=_unknown(what, str(value), known))


def _expected(words: str, value: Any) -> str:
    shown = "null" if value is None else repr(value)
    return f"expected {words}, got {shown}"


def _unknown(what: str, name: str, known: tuple[str, ...]) -> str:
    hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
    return f"unknown {what} {name!r}{hint}"
