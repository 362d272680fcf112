"""Gradients and losses that are added up over steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.course import course_of
from supervisor.source_check.events import Event, Moment, training_of
from supervisor.source_check.operations import without_gradients
from supervisor.source_check.scope import Scope, dotted, last_name
from supervisor.source_check.source import Rule, Source
from supervisor.source_check.values import definitions, ingredients, sole_origin


def _never_divides(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = course_of(source, scope)
        for backward in (event for event in events if event.moment is Moment.BACKWARD):
            if backward.subject is None or _divides_itself(source, backward):
                continue
            for step in events:
                modulus = _accumulation_steps(source, backward, step)
                if modulus is None or not _clears_with(events, step):
                    continue
                if not _is_divided(source, scope, backward.subject, modulus):
                    yield backward.apart_from(step)
                    break


def _divides_itself(source: Source, backward: Event) -> bool:
    """accelerate divides by the number it was told; Fabric and Lightning's own do not."""
    if not backward.managed or last_name(backward.call.func) == "manual_backward":
        return False
    if "fabric" in backward.receiver.lower():
        return False
    made = [call for _, call in source.all(ast.Call) if last_name(call.func) == "Accelerator"]
    told = [keyword.arg or "accumulation" for call in made for keyword in call.keywords]
    return not made or any("accumulation" in name for name in told)


def _accumulation_steps(source: Source, backward: Event, step: Event) -> ast.expr | None:
    """Returns N where ``step`` runs every N passes only and ``backward`` in each of them."""
    if step.moment not in {Moment.STEP, Moment.SCALER_STEP} or not backward.can_meet(step):
        return None
    if not step.loops or step.loops[:1] != backward.loops[:1]:
        return None
    for call in reversed(step.path):
        for ancestor in source.ancestors_in_scope(call):
            if ancestor is step.loops[0]:
                return None
            if not isinstance(ancestor, ast.If):
                continue
            holds_both = any(source.is_inside(each, ancestor) for each in backward.path)
            modulus = None if holds_both else _modulus(source, ancestor.test)
            if modulus is not None:
                return modulus
    return None


def _modulus(source: Source, test: ast.expr) -> ast.expr | None:
    """Returns N of ``(i + 1) % N == 0``, also where that has a name."""
    for name in ast.walk(test):
        origin = sole_origin(source, name) if isinstance(name, (ast.Name, ast.Attribute)) else name
        for node in ast.walk(origin) if origin is not None else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                return node.right
    return None


def _clears_with(events: list[Event], step: Event) -> bool:
    """Are gradients cleared only when the optimizer steps?"""
    clears = [event for event in events if event.moment is Moment.ZERO_GRAD]
    inside = [event for event in clears if event.loops[:1] == step.loops[:1]]
    return bool(inside) and all(step.facts <= clear.facts for clear in inside)


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
