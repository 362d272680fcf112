"""Where in the script something happens: its file and line, and what its source says there."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from torch import nn, optim

from supervisor.training_state.registry import Registry
from supervisor.training_state.user_code import is_library_file
from supervisor.worker.script_state.user_frames import is_users


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line of the script; `around`: it and those of its callers, from the inside."""

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


def sources(place: ScriptLine) -> Iterator[ast.Module]:
    """Files of the script: those on the stack at `place`, and the modules that it has imported. One
    that cannot be read is given as `UNKNOWN`."""
    files = {getattr(module, "__file__", None) or "" for module in imported()}
    own = {file for file in files if file.endswith(".py") and is_users(file)}
    for file in {file for file in own if not is_library_file(file)} | {f for f, _ in place.around}:
        yield tree_of(file) or UNKNOWN


UNKNOWN = ast.Module(body=[], type_ignores=[])


def names_in(place: ScriptLine, *names: str) -> bool:
    """Whether a file of the script has an attribute or a name of these anywhere; also where one
    cannot be read."""
    for tree in sources(place):
        for node in ast.walk(tree):
            if any(getattr(node, word, None) in names for word in ("attr", "id", "name")):
                return True
        if tree is UNKNOWN:
            return True
    return False


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


def function_at(file: str, line: int) -> Function:
    """The innermost function around a line, or the module."""
    found: Function = tree_of(file) or UNKNOWN
    for node in ast.walk(found):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_at(node, line):
            found = node  # walked from the outside to the inside
    return found


def is_at(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", line + 1), getattr(node, "end_lineno", 0)
    return bool(first <= line <= (last or first))


def calls(inside: ast.AST, method: str) -> Iterator[ast.Call]:
    """Calls ``x.method(...)``."""
    for node in ast.walk(inside):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == method:
            yield node


def loss_line(registry: Registry) -> str:
    """Where the loss was computed on which the script calls ``loss.backward()`` now: the call of
    ``cross_entropy`` in the class of one of the models, or the last assignment of that name before
    it; its own line where the source does not tell."""
    for model in registry.models.values():
        within = class_of(model)
        for call in calls(within[1], "cross_entropy") if within else ():
            return told(within[0] if within else "", call.lineno)
    place = script_place()
    if place is None:
        return ""
    function = function_at(place.file, place.line)
    backwards = [call for call in calls(function, "backward") if is_at(call, place.line)]
    names = {getattr(getattr(call.func, "value", None), "id", "") for call in backwards}
    lines = [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and node.lineno < place.line and names & bound(node.targets)
    ]
    return told(place.file, max(lines)) if lines else str(place)


def bound(targets: list[ast.expr]) -> set[str]:
    """Names within what is assigned to."""
    return {n.id for each in targets for n in ast.walk(each) if isinstance(n, ast.Name)}


def call_around(place: ScriptLine, method: str) -> str:
    """The nearest ``x.method(...)`` in the functions on the stack, from the inside: the last one
    before the line, or the first after it; `place` itself where there is none."""
    for file, line in place.around:
        lines = [call.lineno for call in calls(function_at(file, line), method)]
        if lines:
            return told(file, max([n for n in lines if n <= line], default=min(lines)))
    return str(place)


def block_around(file: str, line: int) -> tuple[list[ast.stmt], set[str]]:
    """The statements of the innermost block around a line; what its ``for`` loop gets, if that is
    what it is of."""
    block: list[ast.stmt] = []
    names: set[str] = set()
    for node in ast.walk(function_at(file, line)):
        for name in ("body", "orelse"):
            found = getattr(node, name, None)
            if isinstance(found, list) and any(is_at(each, line) for each in found):
                block = found
                names = bound([node.target]) if isinstance(node, ast.For) else set()
    return block, names


def resolve(node: ast.AST, frame: FrameType) -> Any:
    """The object that a name or attribute means in `frame`, with nothing of the script's called;
    None where that is not known."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if not isinstance(node, ast.Attribute):
        return None
    base = resolve(node.value, frame)
    if isinstance(base, nn.Module) and node.attr in base._modules:
        return base._modules[node.attr]
    own = getattr(base, "__dict__", None)
    return own.get(node.attr) if type(own) is dict else None


def line_without_gradients(place: ScriptLine | None) -> str:
    """The innermost ``with`` on the stack that switches gradients off; else `place`."""
    for file, line in place.around if place else ():
        for node in ast.walk(function_at(file, line)):
            if isinstance(node, ast.With) and is_at(node, line):
                words = "".join(map(ast.dump, node.items))
                if any(word in words for word in ("no_grad", "inference_mode", "set_grad_enabled")):
                    return told(file, node.lineno)
    return str(place or "")


OPTIMIZERS = frozenset(name for name, found in vars(optim).items() if isinstance(found, type)) - {
    "Optimizer"
}


def makes_more_later(made: ScriptLine) -> bool:
    """Whether the script goes on to give an optimizer further parameters: by ``add_param_group``,
    or by an optimizer that it makes below line `made` in every case, or within a loop. Those in
    another branch of an ``if``, or in another function, are alternatives."""
    tree = tree_of(made.file)
    if tree is None or any(calls(tree, "add_param_group")):
        return True
    function = function_at(made.file, made.line)
    kinds = (ast.If, ast.IfExp, ast.Match, ast.Try, ast.For, ast.While, ast.Dict)
    within = [node for node in ast.walk(function) if isinstance(node, kinds)]
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.lineno > made.line:
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            around = [each for each in within if is_at(each, node.lineno)]
            is_looped = any(isinstance(each, (ast.For, ast.While)) for each in around)
            if name in OPTIMIZERS and (is_looped or not around):
                return True
    return False
