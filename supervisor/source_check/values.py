"""Where a value comes from: assignments, attributes of self, arguments and results of calls.

All rules resolve names through this layer. It follows values within one file; one that may come
from elsewhere has no origin.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.scope import (
    SCOPE_NODES,
    Assignment,
    Function,
    Scope,
    dotted,
    last_name,
    place,
)
from supervisor.source_check.source import Source, kept_for_file, kept_meanwhile

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


_MAX_DEPTH = 6
_WRAPPERS = frozenset(
    {"DataParallel", "DistributedDataParallel", "compile", "script", "partial", "prepare", "setup"}
)
"""Calls that return their argument wrapped, with its methods."""
_MOVES = frozenset({"to", "cuda", "cpu", "half", "float", "bfloat16", "train", "eval", "double"})
_SPLITS = frozenset({"chunk", "split", "unbind", "tensor_split"})


def definitions(source: Source, name: ast.expr) -> list[Assignment]:
    """Returns the assignments in the same function that may have set ``name`` where it is read.

    Empty for parameters, for names of an outer scope and for anything that is not a name or a
    chain of attributes.
    """
    key = dotted(name)
    if key is None:
        return []
    found: list[Assignment] = []
    for assignment in reversed(source.scope_of(name).assignments(key)):
        statement = assignment.statement
        is_later = place(statement) >= place(name) or source.is_inside(name, statement)
        if is_later and not _is_loop_around(source, statement, name):
            continue
        if not source.can_meet(statement, name):
            continue
        found.append(assignment)
        if source.is_sure(statement, name):
            break
    return found


def _is_loop_around(source: Source, statement: ast.AST, name: ast.expr) -> bool:
    return isinstance(statement, (ast.For, ast.AsyncFor)) and source.is_inside(name, statement)


@kept_for_file
def _bindings(source: Source, name: ast.expr) -> list[ast.expr | None]:
    """Returns what ``name`` may have been set to, one step back; None for what is not written."""
    made = definitions(source, name)
    scope, key = source.scope_of(name), dotted(name)
    if not made and key is not None:
        if key.startswith("self."):
            made = _attributes(source, name, key)
        elif key in scope.parameters:
            return _arguments(source, scope, key)
        else:
            made = _of_outer_scopes(source, scope, key)
    return [_value_of(source, assignment) for assignment in made]


def _attributes(source: Source, name: ast.expr, key: str) -> list[Assignment]:
    """What the other methods of the class set ``self.x`` to."""
    owner = source.class_of(name)
    owners = set() if owner is None else set(lineage(source, owner))
    return [
        assignment
        for scope, assignment in source.assignments(key)
        if source.class_of(scope.node) in owners
        and not source.is_inside(name, assignment.statement)
    ]


def _arguments(source: Source, scope: Scope, key: str) -> list[ast.expr | None]:
    if isinstance(scope.node, ast.Module):
        return []
    return [argument(source, call, scope.node, key) for call in callers(source, scope.node)]


def _of_outer_scopes(source: Source, scope: Scope, key: str) -> list[Assignment]:
    root = key.split(".")[0]
    while not isinstance(scope.node, ast.Module):
        if root in scope.parameters or scope.assignments(root):
            return []
        scope = source.scope_of(scope.node)
        found = scope.assignments(key)
        if found:
            return found
    return []


def _value_of(source: Source, assignment: Assignment) -> ast.expr | None:
    if assignment.unpacked is None:
        return assignment.value
    whole, index = sole_origin(source, assignment.unpacked[0]), assignment.unpacked[1]
    if isinstance(whole, ast.Tuple):
        return whole.elts[index] if index < len(whole.elts) else None
    if isinstance(whole, (ast.GeneratorExp, ast.ListComp)):
        return whole.elt
    if isinstance(whole, ast.Call) and isinstance(whole.func, ast.Attribute):
        return whole.func.value if whole.func.attr in _SPLITS else None
    return None


@kept_for_file
def results(source: Source, function: Function) -> list[ast.expr]:
    """Returns the expressions that a function of the file returns; none for a generator."""
    if isinstance(function, ast.Lambda):
        return [function.body]
    scope = source.scope_for(function)
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in scope.nodes):
        return []
    return [node.value for node in scope.all(ast.Return) if node.value is not None]


@kept_meanwhile(None)
def function_behind(source: Source, call: ast.Call) -> Function | None:
    """Returns the function or method of this file that ``call`` runs, if it can be told.

    ``model(x)`` runs ``forward`` of the class that ``model`` was made of.
    """
    if source.names.resolve(call.func):
        return None
    found = called_by_name(source, call)
    if found is not None:
        return None if getattr(found, "name", "") == "__init__" else found
    if isinstance(call.func, ast.Attribute):
        owner = class_behind(source, call.func.value)
        if owner is not None:
            return method_of(source, owner, call.func.attr)
    made = class_behind(source, call.func)
    if made is not None:
        return method_of(source, made, "forward") or method_of(source, made, "__call__")
    return None


@kept_meanwhile(None)
def class_behind(source: Source, instance: ast.expr) -> ast.ClassDef | None:
    """Returns the class of this file of which ``instance`` is made, seen through ``.to()``."""
    found = set()
    for origin in origins(source, instance):
        made = unwrapped(origin)
        if made is not origin and isinstance(made, (ast.Name, ast.Attribute)):
            return class_behind(source, made)
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Name):
            found.add(named(source, made.func))
    only = found.pop() if len(found) == 1 else None
    return only if isinstance(only, ast.ClassDef) else None


def unwrapped(made: ast.expr) -> ast.expr:
    """Returns ``Net()`` for ``DataParallel(Net().to(device))``."""
    while isinstance(made, ast.Call):
        if isinstance(made.func, ast.Attribute) and made.func.attr in _MOVES:
            made = made.func.value
        elif last_name(made.func) in _WRAPPERS and made.args:
            made = made.args[0]
        else:
            break
    return made


def _step_back(
    source: Source, expression: ast.expr, *, here: bool = False
) -> list[ast.expr | None]:
    if here:
        return [assignment.value for assignment in definitions(source, expression)]
    if isinstance(expression, (ast.Name, ast.Attribute)):
        return _bindings(source, expression)
    if isinstance(expression, ast.Call):
        function = function_behind(source, expression)
        return list(results(source, function)) if function is not None else []
    return []


def origins(source: Source, expression: ast.expr, *, here: bool = False) -> Iterator[ast.expr]:
    """Yields ``expression`` and the expressions it may have come from, nearest first.

    ``here`` stays within the function.
    """
    seen = {expression}
    current = [expression]
    for _ in range(_MAX_DEPTH):
        yield from current
        before = [value for each in current for value in _step_back(source, each, here=here)]
        current = [value for value in dict.fromkeys(before) if value and value not in seen]
        seen.update(current)


def sole_origin(source: Source, expression: ast.expr) -> ast.expr | None:
    """Returns the one expression a value comes from; None if there are several or none known.

    An imported name, and a call whose result cannot be followed, is its own origin.
    """
    current = expression
    for _ in range(_MAX_DEPTH):
        found = _step_back(source, current)
        if len(found) == 1 and found[0] is not None:
            current = found[0]
        elif not isinstance(current, (ast.Name, ast.Attribute)):
            return current
        else:
            return current if not found and source.names.resolve(current) else None
    return None


def full_name(source: Source, expression: ast.expr) -> str:
    """Returns the dotted name of what was imported and reached this name, or ''.

    ``torch.nn.utils.clip_grad_norm_`` for ``clip`` after ``clip = nn.utils.clip_grad_norm_``.
    """
    name = source.names.resolve(expression)
    if name or not isinstance(expression, (ast.Name, ast.Attribute)):
        return name
    origin = sole_origin(source, expression)
    if isinstance(origin, ast.Call) and last_name(origin.func) == "partial" and origin.args:
        origin = origin.args[0]
    return source.names.resolve(origin) if origin is not None else ""


def is_false(expression: ast.expr) -> bool:
    """Is this the literal ``False``?"""
    return isinstance(expression, ast.Constant) and expression.value is False


def is_torch(source: Source, expression: ast.expr, *endings: str) -> bool:
    """Is this, under whatever name, something of torch whose last part is one of ``endings``?"""
    name = full_name(source, expression)
    return name.split(".")[0] == "torch" and name.rsplit(".", 1)[-1] in endings


def ingredients(source: Source, expression: ast.expr, *, here: bool = False) -> Iterator[ast.AST]:
    """Yields every node that the value may have been computed from, as far as the file tells.

    ``here`` stays within the function.
    """
    seen: set[ast.AST] = set()
    current = [expression]
    for _ in range(_MAX_DEPTH + 1):
        following: list[ast.expr] = []
        for node in (node for each in current for node in ast.walk(each)):
            if node in seen:
                continue
            seen.add(node)
            yield node
            if isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
                before = _step_back(source, node, here=here)
                following += [value for value in before if value is not None]
        current = following
