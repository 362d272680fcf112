"""Global variables that a piece of code names: what a function can reach beside its arguments."""

from __future__ import annotations

import dis
import functools
import os
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.training_state.census.lazy_modules import is_module, own_variables
from supervisor.training_state.user_code import is_library_file

_OURS = str(Path(__file__).parents[2]) + os.sep


@dataclass(frozen=True, slots=True, eq=False)
class NamedGlobals:
    """They are read anew each time: a module's counter is another object when it has counted.

    Attributes:
        code: of a function of the user's.
        variables: of its module.
    """

    code: types.CodeType
    variables: Mapping[str, Any]

    def values(self) -> Iterator[Any]:
        """Yields what the names stand for; of the user's modules all their variables, of others
        those that the code may assign."""
        assigned = _names(self.code, "STORE_ATTR")
        for name in _names(self.code, "LOAD_GLOBAL"):
            value = self.variables.get(name)
            if not is_module(value):
                yield value
                continue
            own = own_variables(value)
            if is_users(own.get("__file__") or "<"):
                yield from _plain_values(own)
            else:
                yield from (own.get(name) for name in assigned)


@functools.lru_cache(maxsize=1024)
def is_users(path: str) -> bool:
    """Whether a file is neither ours nor a library's."""
    return not path.startswith(("<", _OURS)) and not is_library_file(path)


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType, operation: str) -> tuple[str, ...]:
    names = {one.argval for one in dis.get_instructions(code) if one.opname == operation}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(_names(inner, operation))
    return tuple(sorted(names))


def _plain_values(variables: Mapping[str, Any]) -> list[Any]:
    kinds = (types.ModuleType, types.FunctionType, type)
    found = variables.items()
    return [v for k, v in found if not k.startswith("__") and type(v) not in kinds]
