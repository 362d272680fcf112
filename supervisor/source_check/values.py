"""Where a value comes from: the assignments that may have set a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.names import dotted
from supervisor.source_check.scope import Assignment, place
from supervisor.source_check.source import Source

_MAX_DEPTH = 6


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


def origins(source: Source, expression: ast.expr, depth: int = _MAX_DEPTH) -> Iterator[ast.expr]:
    """Yields ``expression`` and, where it is a name, the expressions it may have been set to."""
    yield expression
    if depth == 0 or not isinstance(expression, (ast.Name, ast.Attribute)):
        return
    for assignment in definitions(source, expression):
        if assignment.value is not None:
            yield from origins(source, assignment.value, depth - 1)


def sole_origin(source: Source, expression: ast.expr) -> ast.expr | None:
    """Returns the one expression a value comes from; None if there are several or none known."""
    current = expression
    for _ in range(_MAX_DEPTH):
        if not isinstance(current, (ast.Name, ast.Attribute)):
            return current
        found = definitions(source, current)
        if len(found) != 1 or found[0].value is None:
            return None
        current = found[0].value
    return None


def ingredients(source: Source, expression: ast.expr, depth: int = _MAX_DEPTH) -> Iterator[ast.AST]:
    """Yields every node that the value may have been computed from within its function."""
    for node in ast.walk(expression):
        yield node
        if depth and isinstance(node, (ast.Name, ast.Attribute)):
            for assignment in definitions(source, node):
                if assignment.value is not None:
                    yield from ingredients(source, assignment.value, depth - 1)
