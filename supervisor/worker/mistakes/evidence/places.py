"""Where in the script something happens: its file and line, and what its source says there."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from torch import nn, optim

from supervisor.training_state.user_code import is_library_file
from supervisor.worker.script_state.user_frames import is_users


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line of the script; `around`: those of its callers, from the inside."""

    file: str
    line: int
    around: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return told(self.file, self.line)


def told(file: str, line: int) -> str:
    """``file:line``, from the working directory where the file is below it."""
    try:
        short = os.path.relpath(file)
    except ValueError:  # another drive
        short = file
    return f"{file if short.startswith('..') else short}:{line}"


def _script_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file) and not is_library_file(file):
            yield frame
        frame = frame.f_back


def script_frame() -> FrameType | None:
    """The innermost of the script on the stack; None where no script is."""
    return next(_script_frames(), None)


def script_place() -> ScriptLine | None:
    """Its line."""
    lines = [(frame.f_code.co_filename, frame.f_lineno) for frame in _script_frames()]
    return ScriptLine(*lines[0], tuple(lines)) if lines else None


def imported() -> list[ModuleType]:
    return list(sys.modules.values())


def script_files(place: ScriptLine) -> set[str]:
    """Files of the script: those on the stack at `place`, and the modules that it has imported."""
    files = {getattr(module, "__file__", None) or "" for module in imported()}
    own = {file for file in files if file.endswith(".py") and is_users(file)}
    return {file for file in own if not is_library_file(file)} | {file for file, _ in place.around}


@functools.lru_cache(maxsize=32)
def tree_of(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def class_of(value: object) -> tuple[str, ast.ClassDef] | None:
    """The file and source of a value's class; None where there is none, or in a library."""
    try:
        file = inspect.getsourcefile(type(value)) or ""
    except (TypeError, OSError):
        return None
    tree = tree_of(file) if file and is_users(file) else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == type(value).__name__:
            return file, node
    return None


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def function_at(file: str, line: int) -> Function | None:
    """The innermost function around a line, or the module."""
    tree = tree_of(file)
    if tree is None:
        return None
    found: Function = tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
            node.lineno <= line <= (node.end_lineno or node.lineno)
        ):
            found = node  # walked from the outside to the inside
    return found


def loss_line(place: ScriptLine | None, models: Iterable[object] = ()) -> str:
    """Where the loss was computed on which ``loss.backward()`` is called at `place`: the call of
    ``cross_entropy`` in the class of one of `models`, or the last assignment of that name before
    it; `place` itself where the source does not tell."""
    for model in models:
        within = class_of(model)
        lines = [call.lineno for call in calls(within[1], "cross_entropy")] if within else []
        if within and lines:
            return told(within[0], lines[0])
    if place is None:
        return ""
    function = function_at(place.file, place.line)
    if function is None:
        return str(place)
    name = next(
        (
            call.func.value.id
            for call in calls(function, "backward")
            if call.lineno <= place.line <= (call.end_lineno or call.lineno)
            and isinstance(call.func.value, ast.Name)
        ),
        None,
    )
    lines = [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and node.lineno < place.line
        and any(
            isinstance(part, ast.Name) and part.id == name
            for target in node.targets
            for part in ast.walk(target)
        )
    ]
    return told(place.file, max(lines)) if lines else str(place)


@dataclass(frozen=True, slots=True)
class _Call:
    func: ast.Attribute
    lineno: int
    end_lineno: int | None


def calls(inside: ast.AST, method: str) -> Iterator[_Call]:
    """Calls ``x.method(...)``."""
    for node in ast.walk(inside):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == method:
            yield _Call(node.func, node.lineno, node.end_lineno)


def call_around(place: ScriptLine, method: str) -> str:
    """The nearest ``x.method(...)`` in the functions on the stack, from the inside: the last one
    before the line, or the first after it; `place` itself where there is none."""
    for file, line in place.around:
        function = function_at(file, line)
        lines = [call.lineno for call in calls(function, method)] if function else []
        if lines:
            before = [each for each in lines if each <= line]
            return told(file, max(before) if before else min(lines))
    return str(place)


def block_around(file: str, line: int) -> tuple[list[ast.stmt], ast.AST | None]:
    """The statements of the innermost block around a line, and the loop that this block is of."""
    block: list[ast.stmt] = []
    loop: ast.AST | None = None
    function = function_at(file, line)
    for node in ast.walk(function) if function else ():
        for name in ("body", "orelse"):
            found = getattr(node, name, None)
            if isinstance(found, list) and any(
                each.lineno <= line <= (each.end_lineno or 0) for each in found
            ):
                block, loop = found, node if isinstance(node, (ast.For, ast.While)) else None
    return block, loop


def resolve(node: ast.AST, frame: FrameType) -> Any:
    """The object that a name or attribute means in `frame`, with nothing of the script's called;
    None where that is not known."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if not isinstance(node, ast.Attribute):
        return None
    base = resolve(node.value, frame)
    if isinstance(base, ModuleType):
        return vars(base).get(node.attr)
    if isinstance(base, nn.Module) and node.attr in base._modules:
        return base._modules[node.attr]
    own = getattr(base, "__dict__", None)
    return own.get(node.attr) if type(own) is dict else None


def line_with(place: ScriptLine, *words: str) -> str:
    """The innermost line on the stack in whose ``with`` statement, or decorator, a word stands."""
    for file, line in place.around:
        function = function_at(file, line)
        for node in ast.walk(function) if function else ():
            if not isinstance(node, ast.With) or not node.lineno <= line <= (node.end_lineno or 0):
                continue
            if any(word in ast.dump(item) for item in node.items for word in words):
                return told(file, node.lineno)
    return str(place)


OPTIMIZERS = frozenset(name for name, found in vars(optim).items() if isinstance(found, type)) - {
    "Optimizer"
}


def makes_more_later(made: ScriptLine) -> bool:
    """Whether the script goes on to give an optimizer further parameters: by ``add_param_group``,
    or by an optimizer that it makes below line `made` in every case, or within a loop. Those in
    another branch of an ``if``, or in another function, are alternatives."""
    tree = tree_of(made.file)
    if tree is None:
        return True
    if any(calls(tree, "add_param_group")):
        return True
    function = function_at(made.file, made.line)
    within = [
        (node.lineno, node.end_lineno or node.lineno, isinstance(node, (ast.For, ast.While)))
        for node in ast.walk(function or tree)
        if isinstance(node, (ast.If, ast.IfExp, ast.Match, ast.Try, ast.For, ast.While, ast.Dict))
    ]
    for node in ast.walk(function or tree):
        if not isinstance(node, ast.Call) or node.lineno <= made.line:
            continue
        if isinstance(node.func, (ast.Attribute, ast.Name)):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            around = [loop for first, last, loop in within if first <= node.lineno <= last]
            if name in OPTIMIZERS and (not around or any(around)):
                return True
    return False
