"""Gradients and losses that are added up over steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.events import Event, Moment, training_of
from supervisor.source_check.names import dotted
from supervisor.source_check.regions import without_gradients
from supervisor.source_check.rule import Rule
from supervisor.source_check.scope import Scope
from supervisor.source_check.source import Source
from supervisor.source_check.values import definitions, ingredients


def _never_divides(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = training_of(source).events(scope)
        for backward in (event for event in events if event.moment is Moment.BACKWARD):
            if backward.managed or backward.subject is None:
                continue
            for step in events:
                modulus = _accumulation_steps(source, backward, step)
                if modulus is None or not _clears_with(source, events, step):
                    continue
                if not _is_divided(source, scope, backward.subject, modulus):
                    yield backward.call
                    break


def _accumulation_steps(source: Source, backward: Event, step: Event) -> ast.expr | None:
    """Returns N where ``step`` runs every N passes only and ``backward`` in each of them."""
    if step.moment not in {Moment.STEP, Moment.SCALER_STEP}:
        return None
    loops = source.loops(step.call)
    if not loops or loops[:1] != source.loops(backward.call)[:1]:
        return None
    if not source.can_meet(backward.call, step.call):
        return None
    for ancestor in source.ancestors_in_scope(step.call):
        if ancestor is loops[0]:
            return None
        if isinstance(ancestor, ast.If) and not source.is_inside(backward.call, ancestor):
            for node in ast.walk(ancestor.test):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                    return node.right
    return None


def _clears_with(source: Source, events: list[Event], step: Event) -> bool:
    """Are gradients cleared only when the optimizer steps?"""
    clears = [event for event in events if event.moment is Moment.ZERO_GRAD]
    inside = [e for e in clears if source.loops(e.call)[:1] == source.loops(step.call)[:1]]
    return bool(inside) and all(source.is_sure(step.call, clear.call) for clear in inside)


def _is_divided(source: Source, scope: Scope, loss: ast.expr, modulus: ast.expr) -> bool:
    count = ast.unparse(modulus)
    for node in ingredients(source, loss):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == count:
            return True
        if isinstance(node, ast.Attribute) and node.attr in {"div", "div_", "mul", "mul_"}:
            return True
    return any(node.attr == "grad" for node in scope.all(ast.Attribute))


def _keeps_graphs(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = training_of(source).events(scope)
        for backward in (event for event in events if event.moment is Moment.BACKWARD):
            loss = backward.subject
            if isinstance(loss, ast.Name) and source.loops(backward.call):
                yield from _sums_of(source, scope, loss, backward)


def _sums_of(source: Source, scope: Scope, loss: ast.Name, backward: Event) -> Iterator[ast.AST]:
    made_by = [id(assignment.statement) for assignment in definitions(source, loss)]
    loop = source.loops(backward.call)[0]
    for statement, total, added in _additions(scope):
        if loop not in source.loops(statement) or without_gradients(source, statement):
            continue
        term = next((name for name in _bare_names(added) if name.id == loss.id), None)
        if term is None or not made_by or total == loss.id:
            continue
        same = made_by == [id(assignment.statement) for assignment in definitions(source, term)]
        if (
            same
            and not _is_reset(source, scope, total, loop)
            and not _is_trained(source, scope, total)
        ):
            yield statement


def _additions(scope: Scope) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Yields statement, sum and what is added for ``a += b`` and ``a = a + b``."""
    for statement in scope.all(ast.AugAssign):
        total = dotted(statement.target)
        if isinstance(statement.op, ast.Add) and total is not None:
            yield statement, total, statement.value
    for assign in scope.all(ast.Assign):
        total, value = dotted(assign.targets[0]), assign.value
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            continue
        if total is not None and dotted(value.left) == total:
            yield assign, total, value.right


def _bare_names(expression: ast.expr) -> Iterator[ast.Name]:
    """Names whose tensor itself is in the sum: ``loss`` and ``loss * n``, not ``loss.item()``."""
    if isinstance(expression, ast.Name):
        yield expression
    elif isinstance(expression, ast.BinOp):
        yield from _bare_names(expression.left)
        yield from _bare_names(expression.right)


def _is_reset(source: Source, scope: Scope, total: str, loop: ast.AST) -> bool:
    """Does the sum begin anew within the loop?"""
    for assignment in scope.assignments(total):
        fresh = not isinstance(assignment.value, ast.BinOp)
        if fresh and source.is_inside(assignment.statement, loop):
            return True
    return False


def _is_trained(source: Source, scope: Scope, total: str) -> bool:
    for event in training_of(source).events(scope):
        if event.moment is Moment.BACKWARD and event.subject is not None:
            for node in ingredients(source, event.subject):
                if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) == total:
                    return True
    return False


RULES = (
    Rule(
        name="accumulation-without-division",
        risk="medium",
        message=(
            "Gradients of several batches are added up, but the loss is not divided by their "
            "number: the update is as many times larger as there are batches."
        ),
        fix="Call backward() on loss / accumulation_steps.",
        find=_never_divides,
    ),
    Rule(
        name="loss-keeps-graph",
        risk="medium",
        message=(
            "The loss is added up as a tensor with its graph: the sum holds on to the graph of "
            "every step, and memory grows until it runs out."
        ),
        fix="Add loss.item() or loss.detach() instead.",
        find=_keeps_graphs,
    ),
)
