"""Where a value of the script lies, and how another one is put there."""

from __future__ import annotations

import contextvars
import functools
import types
from collections.abc import Callable
from typing import Any


class Place:
    """Where a value lies.

    Attributes:
        path: as a person would write it, `main.trainer.callbacks[0].best`.
        value: what lies there.
        is_plain: it is a container of numbers and strings alone, and was not entered.
        same_as: path of the nearer place where this very object lies; empty at its first place.
    """

    __slots__ = ("_holder", "_key", "_write", "is_plain", "path", "same_as", "value")

    def __init__(
        self,
        path: str,
        value: Any,
        holder: Any = None,
        key: Any = None,
        write: Callable[[Any, Any, Any], None] | None = None,
    ) -> None:
        self.path = path
        self.value = value
        self.is_plain = False
        self.same_as = ""
        self._holder = holder
        self._key = key
        self._write = write

    @property
    def replace(self) -> Callable[[Any], None] | None:
        """Puts another value here; None where that is impossible (a tuple's item)."""
        if self._write is None:
            return None
        return functools.partial(self._write, self._holder, self._key)


def write_item(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def write_attribute(holder: Any, name: str, value: Any) -> None:
    object.__setattr__(holder, name, value)


def write_class(holder: type, name: str, value: Any) -> None:
    type.__setattr__(holder, name, value)


def write_context(variable: contextvars.ContextVar[Any], _: str, value: Any) -> None:
    variable.set(value)


def write_cell(cell: types.CellType, name: str, value: Any) -> None:
    cell.cell_contents = value
