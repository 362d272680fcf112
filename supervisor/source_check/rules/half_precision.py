"""Models and tensors that code makes half-precision by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.names import dotted, last_name
from supervisor.source_check.operations import keyword_of, operations
from supervisor.source_check.regions import is_inference_code
from supervisor.source_check.rule import Rule
from supervisor.source_check.scope import Scope
from supervisor.source_check.source import Source
from supervisor.source_check.values import full_name, is_torch, origins

_MODEL = re.compile(r"(^|[._])(model|net|network)$")
_FLOAT16 = frozenset({"float16", "half"})
_BFLOAT16 = frozenset({"bfloat16"})


def _cast_to(source: Source, expression: ast.AST, kinds: frozenset[str]) -> ast.expr | None:
    """Returns what is cast in ``x.half()`` and ``x.to(torch.float16)``, or None."""
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
        return None
    method, value = expression.func.attr, expression.func.value
    if method in kinds and not expression.args and not full_name(source, expression.func):
        return value
    if method in {"to", "type"}:
        given = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        if any(is_torch(source, argument, *kinds) for argument in given):
            return value
    return None


def _trained_in(source: Source, kinds: frozenset[str]) -> Iterator[ast.AST]:
    """Casts of a model whose parameters an optimizer of the same function is given."""
    for scope, call in source.all(ast.Call):
        model = _cast_to(source, call, kinds)
        if model is None:
            continue
        name = dotted(model) or _assigned_name(source, call)
        if name is None or is_inference_code(source, call):
            continue
        if _is_trained(source, scope, name, call) or _is_stepped(source, scope, name):
            yield call


def _assigned_name(source: Source, call: ast.Call) -> str | None:
    for ancestor in source.ancestors_in_scope(call):
        if isinstance(ancestor, ast.Assign):
            return dotted(ancestor.targets[0])
        if not isinstance(ancestor, (ast.Call, ast.Attribute)):
            return None
    return None


def _is_trained(source: Source, scope: Scope, model: str, cast: ast.Call) -> bool:
    """Does an optimizer get exactly this model's parameters, with a backward in the file?"""
    training = training_of(source)
    if next(training.every_event(Moment.BACKWARD), None) is None:
        return False
    for call in scope.all(ast.Call):
        if last_name(call.func) != "parameters" or not isinstance(call.func, ast.Attribute):
            continue
        if dotted(call.func.value) != model or not source.can_meet(cast, call):
            continue
        for ancestor in source.ancestors_in_scope(call):
            if isinstance(ancestor, ast.Call) and "optim" in full_name(source, ancestor.func):
                return True
    return False


def _is_stepped(source: Source, scope: Scope, name: str) -> bool:
    """Is this called a model, in a function that makes training steps?"""
    moments = {event.moment for event in training_of(source).events(scope)}
    return bool(_MODEL.search(name)) and {Moment.BACKWARD, Moment.STEP} <= moments


def _half_model(source: Source) -> Iterator[ast.AST]:
    yield from _trained_in(source, _FLOAT16)


def _bfloat16_model(source: Source) -> Iterator[ast.AST]:
    yield from _trained_in(source, _BFLOAT16)


def _is_low_precision(source: Source, expression: ast.expr | None) -> bool:
    """Is this tensor visibly cast to half precision in the same function?"""
    if expression is None:
        return False
    found = [
        _cast_to(source, origin, _FLOAT16 | _BFLOAT16) is not None or _made_half(source, origin)
        for origin in origins(source, expression)
        if not isinstance(origin, (ast.Name, ast.Attribute))
    ]
    return bool(found) and all(found)


def _made_half(source: Source, expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call):
        return False
    dtype = keyword_of(expression, "dtype")
    makes = is_torch(
        source, expression.func, "randn", "rand", "zeros", "ones", "empty", "full", "tensor"
    )
    return makes and dtype is not None and is_torch(source, dtype, *_FLOAT16, *_BFLOAT16)


def _half_softmax(source: Source) -> Iterator[ast.AST]:
    for operation in operations(source, "softmax", "log_softmax"):
        if operation.keyword("dtype") is None and _is_low_precision(source, operation.operand):
            yield operation.call


def _half_reduction(source: Source) -> Iterator[ast.AST]:
    names = ("sum", "mean", "var", "std", "cumsum", "prod")
    for operation in operations(source, *names):
        if operation.keyword("dtype") is None and _is_low_precision(source, operation.operand):
            yield operation.call


RULES = (
    Rule(
        name="half-model-trained",
        risk="high",
        message=(
            "The model's weights are FP16 and are trained so: small updates round to nothing, "
            "small gradients become zero, and a gradient scaler refuses FP16 gradients."
        ),
        fix="Keep the weights in FP32 and run the forward pass under torch.autocast.",
        find=_half_model,
    ),
    Rule(
        name="bfloat16-model-trained",
        risk="medium",
        message=(
            "The model's weights are BF16 and are trained so: with 8 bits of mantissa an update "
            "below 1/256 of a weight is rounded away."
        ),
        fix="Keep the weights in FP32 and run the forward pass under torch.autocast.",
        find=_bfloat16_model,
    ),
    Rule(
        name="softmax-without-dtype",
        risk="medium",
        message=(
            "Softmax of a half-precision tensor without a dtype: probabilities keep two or three "
            "digits, and in FP16 those below 6e-8 become 0."
        ),
        fix="Give dtype=torch.float32 and cast the result back if need be.",
        find=_half_softmax,
    ),
    Rule(
        name="low-precision-reduction",
        risk="medium",
        message=(
            "A reduction of a half-precision tensor: the result overflows above 65,504 in FP16 "
            "and keeps two digits in BF16."
        ),
        fix="Give dtype=torch.float32, or reduce x.float().",
        find=_half_reduction,
    ),
)
