"""Models and tensors that code makes half-precision by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from supervisor.source_check.course import course_of
from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.operations import (
    RELAYS,
    is_inference_code,
    keyword_of,
    operation_of,
    operations,
)
from supervisor.source_check.scope import Scope, dotted
from supervisor.source_check.source import Rule, Source, kept_for_file, kept_meanwhile
from supervisor.source_check.values import (
    full_name,
    function_behind,
    ingredients,
    is_torch,
    origins,
    sole_origin,
    unwrapped,
)

_MODEL = re.compile(r"(^|[._])(model|net|network)$")
_FLOAT16 = frozenset({"float16", "half"})
_BFLOAT16 = frozenset({"bfloat16"})
_PARAMETERS = frozenset({"parameters", "named_parameters"})
_KEEP_TYPE = RELAYS | {
    "abs", "bmm", "chunk", "clamp", "contiguous", "einsum", "expand", "masked_fill", "matmul",
    "permute", "pow", "relu", "split", "square",
}  # fmt: skip


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


def _trained_in(source: Source, *, kinds: frozenset[str]) -> Iterator[ast.AST]:
    """Casts of a model, or of a part of one, whose parameters an optimizer is given."""
    training = training_of(source)
    if next(training.every_event(Moment.BACKWARD), None) is None:
        return
    if _keeps_masters(source):
        return
    trained = _trained_models(source, source.tree)
    for scope, call in source.all(ast.Call):
        model = _cast_to(source, call, kinds)
        if model is None or is_inference_code(source, call):
            continue
        for name in {dotted(model), _assigned_name(source, call)} - {None}:
            if any(
                f"{name}.".startswith(f"{key}.")
                and home is _home(source, scope, key)
                and source.can_meet(call, given)
                for home, key, given in trained
            ) or _is_stepped(source, scope, name or ""):
                yield call
                break


def _keeps_masters(source: Source) -> bool:
    """Are FP32 copies made of each parameter, which an optimizer may have in their place?"""
    for _, call in source.all(ast.Call):
        copied = _cast_to(source, call, frozenset({"float", "float32"}))
        base = copied
        while isinstance(base, (ast.Attribute, ast.Call)):  # p.detach().float(), p.data.float()
            base = base.value if isinstance(base, ast.Attribute) else base.func
        if copied is None or not isinstance(base, ast.Name):
            continue
        for around in source.ancestors(call):
            loops: list[ast.For | ast.comprehension] = []
            if isinstance(around, (ast.ListComp, ast.GeneratorExp, ast.DictComp)):
                loops += around.generators
            elif isinstance(around, ast.For):
                loops.append(around)
            for loop in loops:
                names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
                given = ingredients(source, loop.iter) if base.id in names else ()
                if any(isinstance(n, ast.Attribute) and n.attr in _PARAMETERS for n in given):
                    return True
    return False


def _home(source: Source, scope: Scope, key: str) -> ast.AST | None:
    """The owner of a name: the class for attributes of self, else the function."""
    return source.class_of(scope.node) if key.startswith("self.") else scope.node


@kept_for_file
def _trained_models(source: Source, tree: ast.AST) -> list[tuple[ast.AST | None, str, ast.Call]]:
    """Names under which models are known whose parameters an optimizer is given."""
    found = []
    for _, call in source.all(ast.Call):
        if not full_name(source, call.func).startswith("torch.optim."):
            continue
        given = call.args[:1] or [k.value for k in call.keywords if k.arg == "params"]
        for node in (node for each in given for node in ingredients(source, each)):
            if isinstance(node, ast.Attribute) and node.attr in _PARAMETERS:
                for origin in origins(source, node.value):
                    key = dotted(unwrapped(origin))
                    if key is not None:
                        home = _home(source, source.scope_of(origin), key)
                        found.append((home, key, call))
    return found


def _assigned_name(source: Source, call: ast.Call) -> str | None:
    for ancestor in source.ancestors_in_scope(call):
        if isinstance(ancestor, ast.Assign):
            return dotted(ancestor.targets[0])
        if not isinstance(ancestor, (ast.Call, ast.Attribute)):
            return None
    return None


def _is_stepped(source: Source, scope: Scope, name: str) -> bool:
    """Is this called a model, in a function that makes training steps?"""
    hooks = {event.moment for event in course_of(source, scope)}
    return bool(_MODEL.search(name)) and {Moment.BACKWARD, Moment.STEP} <= hooks


def _is_low_precision(source: Source, expression: ast.expr | None) -> bool:
    """Is this tensor visibly half-precision, through a cast and operations that keep the type?"""
    found = [
        _is_half(source, origin)
        for origin in (origins(source, expression) if expression is not None else ())
        if not isinstance(origin, (ast.Name, ast.Attribute))
        and not (isinstance(origin, ast.Call) and function_behind(source, origin))
    ]
    return bool(found) and all(found)


@kept_meanwhile(False)
def _is_half(source: Source, value: ast.expr) -> bool:
    if _cast_to(source, value, _FLOAT16 | _BFLOAT16) is not None or _made_half(source, value):
        return True
    if isinstance(value, ast.BinOp):
        left, right = (_is_low_precision(source, side) for side in (value.left, value.right))
        if isinstance(value.op, ast.MatMult):
            return left or right
        return (left and (right or _is_number(source, value.right))) or (
            right and _is_number(source, value.left)
        )
    operation = operation_of(source, value)
    if operation is None or operation.name not in _KEEP_TYPE or keyword_of(operation.call, "dtype"):
        return False
    if operation.name == "einsum":
        return any(_is_low_precision(source, each) for each in operation.arguments)
    return _is_low_precision(source, operation.operand)


def _is_number(source: Source, value: ast.expr) -> bool:
    """Is this a Python number, which does not change the type of a tensor?"""
    origin = sole_origin(source, value)
    if isinstance(origin, ast.BinOp):
        sides = (origin.left, origin.right)
        return any(_is_number(source, side) for side in sides if isinstance(side, ast.Constant))
    if isinstance(origin, ast.Call):
        return full_name(source, origin.func).startswith("math.")
    return isinstance(origin, ast.Constant)


def _made_half(source: Source, expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call):
        return False
    dtype = keyword_of(expression, "dtype")
    makes = is_torch(
        source, expression.func, "randn", "rand", "zeros", "ones", "empty", "full", "tensor"
    )
    return makes and dtype is not None and is_torch(source, dtype, *_FLOAT16, *_BFLOAT16)


def _low_precision_operations(source: Source, *, names: tuple[str, ...]) -> Iterator[ast.AST]:
    for operation in operations(source, *names):
        dtype = keyword_of(operation.call, "dtype")
        if dtype is None and _is_low_precision(source, operation.operand):
            yield operation.call


_SOFTMAX = ("softmax", "log_softmax")
_REDUCTIONS = ("sum", "mean", "var", "std", "cumsum", "prod")

RULES = (
    Rule(
        name="half-model-trained",
        risk="high",
        message=(
            "The model is trained with FP16 weights: small updates round to nothing, "
            "small gradients become zero, and a gradient scaler refuses FP16 gradients."
        ),
        fix="Keep the weights in FP32 and run the forward pass under torch.autocast.",
        find=partial(_trained_in, kinds=_FLOAT16),
    ),
    Rule(
        name="bfloat16-model-trained",
        risk="medium",
        message=(
            "The model is trained with BF16 weights: with 8 bits of mantissa an update "
            "below 1/256 of a weight is rounded away."
        ),
        fix="Keep the weights in FP32 and run the forward pass under torch.autocast.",
        find=partial(_trained_in, kinds=_BFLOAT16),
    ),
    Rule(
        name="softmax-without-dtype",
        risk="medium",
        message=(
            "Softmax of a half-precision tensor without a dtype: probabilities keep two or three "
            "digits, and in FP16 those below 6e-8 become 0."
        ),
        fix="Give dtype=torch.float32 and cast the result back if need be.",
        find=partial(_low_precision_operations, names=_SOFTMAX),
    ),
    Rule(
        name="low-precision-reduction",
        risk="medium",
        message=(
            "A reduction of a half-precision tensor: the result overflows above 65,504 in FP16 "
            "and keeps two digits in BF16."
        ),
        fix="Give dtype=torch.float32, or reduce x.float().",
        find=partial(_low_precision_operations, names=_REDUCTIONS),
    ),
)
