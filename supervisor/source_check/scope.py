"""One function's own statements (or the module's top), and what its names were assigned."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar


def dotted(expression: ast.AST) -> str | None:
    """Returns ``a.b.c`` for a chain of attributes on a name, else None."""
    parts: list[str] = []
    node = expression
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def last_name(expression: ast.AST) -> str:
    """Returns the last identifier of an expression: ``step`` of ``self.optimizer.step``, or ''."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, (ast.Subscript, ast.Starred)):
        return last_name(expression.value)
    if isinstance(expression, ast.Call):
        return last_name(expression.func)
    return ""


class Names:
    """The imports of one file, wherever in it they stand."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self._imported: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.split(".")[0]
                    self._imported[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom):
                package = "." * node.level + (node.module or "")
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{package}.{alias.name}"

    def resolve(self, expression: ast.AST) -> str:
        """Returns the full dotted name behind an imported name, or '' for anything else.

        ``F.softmax`` after ``from torch.nn import functional as F`` is
        ``torch.nn.functional.softmax``; ``model.softmax`` is ''.
        """
        name = dotted(expression)
        if name is None:
            return ""
        root, _, rest = name.partition(".")
        if root not in self._imported:
            return ""
        return f"{self._imported[root]}.{rest}" if rest else self._imported[root]

    def imports(self, package: str) -> bool:
        """Does the file import ``package`` or anything in it?"""
        return any(name.split(".")[0] == package for name in self._imported.values())


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Node = TypeVar("Node", bound=ast.AST)

SCOPE_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)


def place(node: ast.AST) -> tuple[int, int]:
    """Returns line and column: the order in which a file is read."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One binding of a name or of an attribute chain such as ``self.optimizer``."""

    key: str
    value: ast.expr | None
    """None where the value has no expression of its own: a loop variable, an unpacked tuple."""
    statement: ast.AST
    unpacked: tuple[ast.expr, int] | None = None
    """What the value is one element of, and which."""


class Scope:
    """One function or the module's top; nested functions and classes are scopes of their own."""

    def __init__(self, node: Function | ast.Module) -> None:
        self.node = node
        self.nodes = tuple(sorted(_own_nodes(node), key=place))
        self._by_kind: dict[type[ast.AST], tuple[ast.AST, ...]] = {}
        self._assignments: dict[str, list[Assignment]] = {}
        for own in self.nodes:
            for assignment in _assignments(own):
                self._assignments.setdefault(assignment.key, []).append(assignment)

    @property
    def name(self) -> str:
        """The function's name; '' for the module's top and lambdas."""
        return getattr(self.node, "name", "")

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the function's parameters."""
        if isinstance(self.node, ast.Module):
            return frozenset()
        arguments = self.node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        return frozenset(argument.arg for argument in every)

    def all(self, kind: type[Node]) -> Iterator[Node]:
        """Yields the scope's own nodes of one kind, in source order."""
        if kind not in self._by_kind:
            self._by_kind[kind] = tuple(node for node in self.nodes if isinstance(node, kind))
        for node in self._by_kind[kind]:
            assert isinstance(node, kind)
            yield node

    def assignments(self, key: str) -> list[Assignment]:
        """Returns the bindings of ``key`` in source order."""
        return self._assignments.get(key, [])

    def every_assignment(self) -> Iterator[Assignment]:
        """Yields every binding of the scope."""
        for assignments in self._assignments.values():
            yield from assignments


def _own_nodes(root: ast.AST) -> Iterator[ast.AST]:
    stack = list(_own_children(root))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, SCOPE_NODES):
            stack.extend(ast.iter_child_nodes(node))


def _own_children(root: ast.AST) -> Iterator[ast.AST]:
    """Children of a scope that run in it: decorators and defaults run in the scope around it."""
    if isinstance(root, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        yield from root.body
    elif isinstance(root, ast.Lambda):
        yield root.body


def _assignments(node: ast.AST) -> Iterator[Assignment]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _bind(target, node.value, node)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield from _bind(node.target, node.value, node)
    elif isinstance(node, ast.AugAssign):
        value = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        yield from _bind(node.target, value, node)
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _bind(node.target, None, node)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _bind(node.optional_vars, None, node)


def _bind(target: ast.expr, value: ast.expr | None, statement: ast.AST) -> Iterator[Assignment]:
    if isinstance(target, (ast.Tuple, ast.List)):
        values: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            values = list(value.elts)
        for index, (element, its_value) in enumerate(zip(target.elts, values, strict=True)):
            key = dotted(element)
            if its_value is None and value is not None and key is not None:
                unpacked = (value, index)
                yield Assignment(key=key, value=None, statement=statement, unpacked=unpacked)
            else:
                yield from _bind(element, its_value, statement)
        return
    key = dotted(target)
    if key is not None:
        yield Assignment(key=key, value=value, statement=statement)
