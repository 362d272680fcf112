"""Checks whether a config's values can be settings of a detector."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from supervisor.errors import ConfigError

_WORDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
}


def check_values(name: str, kind: type, settings: Mapping[str, Any]) -> None:
    """Compares each value with the type of the constructor's parameter.

    A number whose default is not negative must not be negative.

    Raises:
        ConfigError: another type, not a number, infinite or negative; names the setting.
    """
    hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]  # of a class, not an instance
    parameters = inspect.signature(kind).parameters
    for key, value in settings.items():
        hint = hints.get(key)
        if typing.get_origin(hint) is types.UnionType:
            if value is None and type(None) in typing.get_args(hint):
                continue
            hint = next(one for one in typing.get_args(hint) if one is not type(None))
        if not isinstance(hint, type) or hint not in _WORDS:
            continue
        problem = _problem(value, hint, parameters[key].default)
        if problem:
            raise ConfigError(f"detectors.{name}.{key}: expected {problem}, got {value!r}")


def _problem(value: Any, hint: Any, default: Any) -> str:
    words, accepted = _WORDS[hint]
    number: Any = value
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        return words
    if hint is bool:
        return ""
    if not math.isfinite(number):
        return f"{words} that is finite"
    if number < 0 and isinstance(default, (int, float)) and default >= 0:
        return f"{words} at least 0"
    return ""
