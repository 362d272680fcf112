"""Resolves calls by name within a file: the function that runs, and its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.scope import SCOPE_NODES, Function
from supervisor.source_check.source import Source, kept_for_file

_MAX_BASES = 4


@kept_for_file
def _homes(source: Source, tree: ast.AST) -> dict[ast.AST, dict[str, list[ast.AST]]]:
    """Functions and classes by name, for each function, class or module that defines them."""
    homes: dict[ast.AST, dict[str, list[ast.AST]]] = {}
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            home = next(a for a in source.ancestors(node) if _is_home(a))
            homes.setdefault(home, {}).setdefault(node.name, []).append(node)
    return homes


def _is_home(node: ast.AST) -> bool:
    return isinstance(node, (*SCOPE_NODES, ast.ClassDef))


def named(source: Source, name: ast.Name) -> ast.AST | None:
    """Returns the function or class that a bare name stands for; None if there are several."""
    homes = _homes(source, source.tree)
    for ancestor in source.ancestors(name):
        if isinstance(ancestor, SCOPE_NODES):
            found = homes.get(ancestor, {}).get(name.id)
            if found is not None:
                return found[0] if len(found) == 1 else None
    return None


def method_of(source: Source, owner: ast.ClassDef, name: str) -> Function | None:
    """Returns the method of a class, its own or that of a base class in the same file."""
    for each in lineage(source, owner):
        found = _homes(source, source.tree).get(each, {}).get(name, [])
        if len(found) == 1 and isinstance(found[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
            return found[0]
    return None


def lineage(source: Source, owner: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Yields a class and its base classes in the same file, nearest first."""
    current: ast.AST | None = owner
    for _ in range(_MAX_BASES):
        if not isinstance(current, ast.ClassDef):
            return
        yield current
        bases = (named(source, base) for base in current.bases if isinstance(base, ast.Name))
        current = next((base for base in bases if base is not None), None)


@kept_for_file
def called_by_name(source: Source, call: ast.Call) -> Function | None:
    """Returns what ``f(x)``, ``self.f(x)`` and ``super().f(x)`` run; ``__init__`` of a class."""
    function = call.func
    if isinstance(function, ast.Name):
        found = named(source, function)
        if isinstance(found, ast.ClassDef):
            return method_of(source, found, "__init__")
        return found if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    if not isinstance(function, ast.Attribute):
        return None
    owner = source.class_of(call)
    if owner is None:
        return None
    if isinstance(function.value, ast.Name) and function.value.id == "self":
        return method_of(source, owner, function.attr)
    if isinstance(function.value, ast.Call) and _is_super(function.value):
        for base in list(lineage(source, owner))[1:]:
            return method_of(source, base, function.attr)
    return None


def _is_super(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "super"


@kept_for_file
def _callers(source: Source, tree: ast.AST) -> dict[Function, list[ast.Call]]:
    callers: dict[Function, list[ast.Call]] = {}
    for _, call in source.all(ast.Call):
        function = called_by_name(source, call)
        if function is not None:
            callers.setdefault(function, []).append(call)
    return callers


def callers(source: Source, function: Function) -> list[ast.Call]:
    """Returns the calls by name of ``function`` in the file."""
    return _callers(source, source.tree).get(function, [])


def parameters(function: Function) -> list[str]:
    """Returns the names of a function's parameters, ``self`` included."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [argument.arg for argument in every]


def argument(source: Source, call: ast.Call, function: Function, parameter: str) -> ast.expr | None:
    """Returns the argument of ``call`` for a parameter of ``function``, or its default.

    None for ``self`` and for starred arguments.
    """
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if parameter in names:
        bound = isinstance(source.parent(function), ast.ClassDef) and not _is_static(function)
        index = names.index(parameter) - bound
        if any(isinstance(given, ast.Starred) for given in call.args[: index + 1]):
            return None
        if 0 <= index < len(call.args):
            return call.args[index]
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    return _default(function, parameter)


def _is_static(function: Function) -> bool:
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in decorators)


def _default(function: Function, parameter: str) -> ast.expr | None:
    arguments = function.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    from_right = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
    keyword_only = [each.arg for each in arguments.kwonlyargs]
    only = dict(zip(keyword_only, arguments.kw_defaults, strict=True))
    return from_right.get(parameter) or only.get(parameter)
