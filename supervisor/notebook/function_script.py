"""A script that calls a function of a notebook or of another program."""

from __future__ import annotations

import builtins
import dis
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from supervisor.errors import UsageError

TEMPLATE = """import json
import sys

sys.path[:0] = {paths}
{before}

if __name__ == "__main__":
    {name}(**json.loads({arguments}))
"""


def function_script(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    """Returns the text of a script that calls `function` with `arguments`.

    A function of a module is imported there. One of a notebook or of the started program itself is
    copied as it is written, with the imports that it uses; it can use no other name from outside.

    Raises:
        UsageError: it needs more than its own text and modules, or an argument is not JSON.
    """
    name = function.__name__
    try:
        told = json.dumps(dict(arguments))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"launch: arguments of {name}: {error}: give numbers, texts, lists and dicts"
        ) from error
    if function.__module__ != "__main__":
        before = f"from {function.__module__} import {name}"
    else:
        before = "\n".join([*_imports(function), "", _text(function)])
    paths = [os.path.abspath(path) for path in sys.path]
    return TEMPLATE.format(paths=paths, before=before, name=name, arguments=repr(told))


def _text(function: Callable[..., object]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise UsageError(
            f"launch: {function.__name__}: its text cannot be found: write it in a cell or a module"
        ) from error


def _imports(function: Callable[..., object]) -> Iterator[str]:
    """One line for each module, class and function that is used from outside."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or function.__name__ == "<lambda>":
        raise UsageError(f"launch: {function.__name__}: expected a function written with `def`")
    if code.co_freevars:
        raise UsageError(
            f"launch: {function.__name__}: uses {', '.join(code.co_freevars)} of the function "
            "around it: give them as arguments"
        )
    outside = getattr(function, "__globals__", {})
    for name in sorted(set(_global_names(code))):
        if name not in outside or name == function.__name__:
            continue  # of python itself, or assigned by the function
        yield _import_of(name, outside[name], function.__name__)


def _import_of(name: str, value: object, used_by: str) -> str:
    if isinstance(value, ModuleType):
        return (
            f"import {value.__name__} as {name}"
            if "." in value.__name__ or (value.__name__ != name)
            else f"import {name}"
        )
    home, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if home in (None, "__main__", builtins.__name__) or "." in own_name or not own_name:
        raise UsageError(
            f"launch: {used_by}: uses {name}, which only this notebook or program has: define it "
            "inside the function, give it as an argument, or put both into a module"
        )
    return f"from {home} import {own_name} as {name}"


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
