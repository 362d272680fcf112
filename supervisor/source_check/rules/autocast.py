"""What must, and what must not, stand under autocast."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.operations import (
    LOSSES,
    autocast_switch,
    keyword_of,
    operation_of,
    operations,
    under_autocast,
)
from supervisor.source_check.scope import last_name, place
from supervisor.source_check.source import Rule, Source
from supervisor.source_check.values import definitions, ingredients, sole_origin

_CRITERION = re.compile(r"^(criterion|loss_fn|loss_func|loss_function|crit)\w*$|_(criterion|loss)$")


def _probability_loss(source: Source) -> Iterator[ast.AST]:
    for operation in operations(source, "binary_cross_entropy"):
        is_float = _is_float(source, operation.operand)
        if not is_float and under_autocast(source, operation.call) is not None:
            yield operation.call


def _is_float(source: Source, expression: ast.expr | None) -> bool:
    """Was this cast to FP32 on its way here?"""
    if expression is None:
        return True
    for node in ingredients(source, expression, here=True):
        if isinstance(node, ast.Attribute) and node.attr in {"float", "float32", "double"}:
            return True
    return False


def _loss_outside(source: Source) -> Iterator[ast.AST]:
    for _, call in source.all(ast.Call):
        operation = operation_of(source, call)
        if operation is not None and operation.name in LOSSES:
            output = operation.operand
        elif _CRITERION.search(last_name(call.func)) and call.args:
            output = call.args[0]
        else:
            continue
        if output is None or under_autocast(source, call) is not None:
            continue
        if _came_out_of_autocast(source, output) and _is_trained(source, call):
            yield call


def _came_out_of_autocast(source: Source, output: ast.expr) -> bool:
    """Was this, unchanged since, the result of a call in an autocast block above?"""
    made = definitions(source, output)
    if len(made) != 1 or not isinstance(made[0].statement, ast.Assign):
        return False
    statement = made[0].statement
    if not isinstance(statement.value, ast.Call) or _is_float(source, statement.value):
        return False
    return any(
        isinstance(ancestor, ast.With)
        and any(autocast_switch(source, item.context_expr) for item in ancestor.items)
        for ancestor in source.ancestors_in_scope(statement)
    )


def _is_trained(source: Source, loss: ast.Call) -> bool:
    scope = source.scope_of(loss)
    for event in training_of(source).events(scope):
        if event.moment is not Moment.BACKWARD or event.subject is None:
            continue
        follows = place(event.call) > place(loss)
        if follows and any(node is loss for node in ingredients(source, event.subject)):
            return True
    return False


def _softmax_by_trust(source: Source) -> Iterator[ast.AST]:
    """Softmax written right into an autocast block, of something not cast to FP32."""
    for operation in operations(source, "softmax", "log_softmax"):
        around = under_autocast(source, operation.call)
        if around is None or keyword_of(operation.call, "dtype") is not None:
            continue
        if operation.operand is None or _is_float(source, operation.operand):
            continue
        origin = sole_origin(source, operation.operand)
        if origin is not None and _can_be_half(origin):
            yield operation.call


def _can_be_half(origin: ast.expr) -> bool:
    """A matrix product is what autocast certainly makes half-precision."""
    for node in ast.walk(origin):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in {"matmul", "bmm", "einsum", "linear", "baddbmm"}:
                return True
    return False


RULES = (
    Rule(
        name="loss-outside-autocast",
        risk="medium",
        message=(
            "The forward pass is under autocast but the loss is computed outside: it is computed "
            "in half precision, where autocast would have used FP32."
        ),
        fix="Compute the loss inside the autocast block, or on output.float().",
        find=_loss_outside,
    ),
    Rule(
        name="bce-under-autocast",
        risk="high",
        message=(
            "binary_cross_entropy is not safe in half precision: autocast on CUDA refuses it "
            "with an error, and a sigmoid that rounds to 0 or 1 has no useful gradient."
        ),
        fix="Use binary_cross_entropy_with_logits (BCEWithLogitsLoss) without the sigmoid.",
        find=_probability_loss,
    ),
    Rule(
        name="autocast-softmax-without-dtype",
        risk="low",
        message=(
            "Softmax of a half-precision product without a dtype: autocast computes it in FP32 "
            "on CUDA, but not on every device (on CPU it stays in half precision)."
        ),
        fix="Give dtype=torch.float32.",
        find=_softmax_by_trust,
    ),
)
