"""Losses, and formulas whose value or gradient is infinite at a point that training reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from supervisor.source_check.course import course_of, is_of_training
from supervisor.source_check.events import Moment
from supervisor.source_check.operations import (
    RELAYS,
    Operation,
    is_literal,
    is_trained_code,
    operation_behind,
    operation_of,
    operations,
    value_behind,
)
from supervisor.source_check.scope import dotted, last_name
from supervisor.source_check.source import Rule, Source, kept_meanwhile
from supervisor.source_check.values import full_name, ingredients, origins

_TO_PROBABILITIES = frozenset({"softmax", "sigmoid"})
_NORMS = frozenset({"norm", "vector_norm"})
_NEVER_CONSTANT = frozenset({"eye", "randn", "randn_like", "rand", "linspace", "arange"})


def _log_of_probabilities(source: Source) -> Iterator[ast.AST]:
    for operation in operations(source, "log", "log2", "log10"):
        operand = value_behind(source, operation.operand)
        if isinstance(operand, ast.BinOp) and _is_one_minus(operand):
            operand = value_behind(source, operand.right)
        given = operation_of(source, operand) if operand is not None else None
        if given is None or given.name not in _TO_PROBABILITIES:
            continue
        if is_trained_code(source, operation.call):
            yield operation.call


def _is_one_minus(value: ast.BinOp) -> bool:
    one = is_literal(value.left, 1) or is_literal(value.left, 1.0)
    return one and isinstance(value.op, ast.Sub)


def _log_of_exponentials(source: Source) -> Iterator[ast.AST]:
    for operation in operations(source, "log"):
        total = operation_behind(source, operation.operand)
        if total is None or total.name != "sum":
            continue
        terms = operation_behind(source, total.operand)
        if terms is None or terms.name != "exp" or not is_trained_code(source, operation.call):
            continue
        if _is_shifted(source, terms.operand) or _is_of_nothing(source, operation.call):
            continue
        yield operation.call


def _is_of_nothing(source: Source, call: ast.Call) -> bool:
    """Is this the branch for a tensor without elements?"""
    return any("numel() == 0" in condition and held for condition, held in source.facts(call))


def _is_shifted(source: Source, exponent: ast.expr | None) -> bool:
    """Was the largest value taken off first? Any difference is trusted to be that."""
    if exponent is None:
        return True
    return any(isinstance(node, ast.Sub) for node in ingredients(source, exponent))


def _root_of_squares(source: Source) -> Iterator[ast.AST]:
    for operation in operations(source, "sqrt"):
        value = value_behind(source, operation.operand)
        if value is None or not _can_be_zero(source, value):
            continue
        if is_trained_code(source, operation.call) and not _is_for_reading(source, operation):
            yield operation.call


def _can_be_zero(source: Source, value: ast.expr) -> bool:
    """Whether it is a squared error, or a sum or mean of squares in a loss, with nothing added."""
    operation = operation_of(source, value)
    if operation is None or operation.operand is None:
        return False
    if operation.name == "mse_loss":
        return True
    if not _is_of_loss(source, value):
        return False
    if operation.name in {"sum", "mean"}:
        inner = value_behind(source, operation.operand)
        return inner is not None and _is_square(source, inner)
    return False


def _is_of_loss(source: Source, value: ast.expr, *words: str) -> bool:
    """Is it in a loss or a module's forward? Other distances are often of data only."""
    for ancestor in source.ancestors(value):
        named = isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        name = getattr(ancestor, "name", "").lower() if named else ""
        if name == "forward" or any(word in name for word in ("loss", *words)):
            return True
    return is_of_training(source, value)


def _is_square(source: Source, value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Pow):
        return is_literal(value.right, 2) or is_literal(value.right, 2.0)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return ast.unparse(value.left) == ast.unparse(value.right)
    operation = operation_of(source, value)
    if operation is None:
        return False
    if operation.name == "pow":
        return any(is_literal(argument, 2) for argument in operation.arguments)
    return operation.name == "square"


def _is_for_reading(source: Source, operation: Operation) -> bool:
    """Is the result turned into a Python number at once, so that no gradient flows?"""
    for ancestor in source.ancestors_in_scope(operation.call):
        if isinstance(ancestor, ast.Attribute) and ancestor.attr in {"item", "detach", "cpu"}:
            return True
        if isinstance(ancestor, ast.Call) and getattr(ancestor.func, "id", "") in {"float", "int"}:
            return True
    return False


def _divides_by_spread(source: Source) -> Iterator[ast.AST]:
    for _, division in source.all(ast.BinOp):
        if not isinstance(division.op, ast.Div):
            continue
        divisor = operation_behind(source, division.right)
        if divisor is None or divisor.operand is None:
            continue
        if not _is_torch(source, divisor) and not _is_trained_on(source, division):
            continue
        spread = _spread(source, divisor)
        centred = spread is not None and _is_centred(source, division.left, spread)
        scaled = divisor.name in _NORMS and _is_scaled(source, division, divisor.operand)
        if not centred and not scaled:
            continue
        if not _is_guarded(source, division, divisor) and (
            is_trained_code(source, division) or (centred and is_of_training(source, division))
        ):
            yield division


def _spread(source: Source, divisor: Operation) -> ast.expr | None:
    """Returns x for ``x.std()`` and ``x.var().sqrt()``."""
    if divisor.name == "std":
        return divisor.operand
    inner = operation_behind(source, divisor.operand) if divisor.name == "sqrt" else None
    return inner.operand if inner is not None and inner.name == "var" else None


def _is_guarded(source: Source, division: ast.BinOp, divisor: Operation) -> bool:
    """Does a condition speak of the divisor, is what is divided never zero, or is NaN mended?"""
    text = ast.unparse(division.right)
    if any(text in condition for condition, _ in source.facts(division)):
        return True
    made = operation_behind(source, divisor.operand)
    while made is not None and made.name in {"to", "type_as", "float", "cuda", "repeat"}:
        made = operation_behind(source, made.operand)
    if made is not None and made.name in _NEVER_CONSTANT:
        return True
    if divisor.name in _NORMS and _is_a_feature(source, division):
        return True
    around = next(source.ancestors(division), None)
    return isinstance(around, ast.Call) and last_name(around.func) in {"where", "nan_to_num"}


def _is_a_feature(source: Source, division: ast.BinOp) -> bool:
    """Is the norm given to a call, too? Then it is a distance of points that are apart."""
    length = division.right
    while isinstance(length, ast.Subscript):
        length = length.value
    if not isinstance(length, ast.Name):
        return False
    return any(
        isinstance(argument, ast.Name) and argument.id == length.id
        for call in source.scope_of(division).all(ast.Call)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    )


def _is_centred(source: Source, expression: ast.expr, spread: ast.expr) -> bool:
    """Is this ``x - x.mean()`` for the x whose spread is taken?"""
    value = value_behind(source, expression)
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Sub):
        return False
    mean = operation_behind(source, value.right)
    if mean is None or mean.operand is None or mean.name != "mean":
        return False
    return _same(mean.operand, spread) and _same(_whole(value.left), _whole(spread))


def _whole(part: ast.expr) -> ast.expr:
    while isinstance(part, ast.Subscript):
        part = part.value
    return part


def _same(left: ast.expr, right: ast.expr) -> bool:
    return ast.unparse(left) == ast.unparse(right)


def _is_scaled(source: Source, division: ast.BinOp, measured: ast.expr) -> bool:
    """Is this ``x / x.norm()``, for an x that is not what a layer has just put out?

    The output of a layer with a bias is not zero in practice; data and parameters can be.
    """
    if not _same(division.left, measured) or not _is_of_loss(source, division, "norm"):
        return False
    return not any(_is_layer_call(source, origin) for origin in origins(source, measured))


@kept_meanwhile(False)
def _is_layer_call(source: Source, value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_layer_call(source, value.left) or _is_layer_call(source, value.right)
    if isinstance(value, (ast.Subscript, ast.Attribute)) and dotted(value) != "self":
        return any(
            _is_layer_call(source, o) for o in origins(source, value.value) if o is not value
        )
    if not isinstance(value, ast.Call):
        return False
    operation = operation_of(source, value)
    if operation is not None and operation.name in RELAYS and operation.operand is not None:
        return any(_is_layer_call(source, origin) for origin in origins(source, operation.operand))
    called = dotted(value.func) or ""
    return called.startswith("self.") or "encode" in called or "model" in called


def _is_torch(source: Source, operation: Operation) -> bool:
    """Methods of NumPy arrays look the same: a file that imports NumPy must show it is torch."""
    if full_name(source, operation.call.func).startswith("torch."):
        return True
    if not source.names.imports("torch"):
        return False
    if not source.names.imports("numpy"):
        return True
    shown = {"dim", "keepdim", "unbiased", "correction", "p"}
    return any(keyword.arg in shown for keyword in operation.call.keywords)


def _is_trained_on(source: Source, division: ast.BinOp) -> bool:
    """Is a loss of the same function made of this? Then it is no array of NumPy."""
    return any(
        event.moment is Moment.BACKWARD
        and event.subject is not None
        and any(node is division for node in ingredients(source, event.subject))
        for event in course_of(source, source.scope_of(division))
    )


def _losses_of(source: Source, *, loss: str, activations: frozenset[str]) -> Iterator[ast.AST]:
    for operation in operations(source, loss):
        given = operation_behind(source, operation.operand)
        if given is not None and given.name in activations:
            yield operation.call


_SOFTMAX = frozenset({"softmax"})
_ANY = frozenset({"sigmoid", "softmax"})

RULES = (
    Rule(
        name="softmax-before-cross-entropy",
        risk="high",
        message=(
            "cross_entropy applies the softmax itself: given probabilities, the loss never comes "
            "near zero, gradients shrink, and training stalls early."
        ),
        fix="Pass the logits.",
        find=partial(_losses_of, loss="cross_entropy", activations=_SOFTMAX),
    ),
    Rule(
        name="sigmoid-before-bce-with-logits",
        risk="high",
        message=(
            "binary_cross_entropy_with_logits applies the sigmoid itself: given probabilities, "
            "the loss never comes near zero, and gradients shrink."
        ),
        fix="Pass the logits.",
        find=partial(_losses_of, loss="binary_cross_entropy_with_logits", activations=_ANY),
    ),
    Rule(
        name="nll-without-log",
        risk="high",
        message=(
            "nll_loss takes log-probabilities; given probabilities, it is no likelihood: its "
            "minimum is -1, not 0."
        ),
        fix="Use log_softmax, or cross_entropy on the logits.",
        find=partial(_losses_of, loss="nll_loss", activations=_SOFTMAX),
    ),
    Rule(
        name="log-without-epsilon",
        risk="high",
        message=(
            "The logarithm of a probability that can round to 0: the loss becomes infinite and "
            "the gradient NaN."
        ),
        fix="Use log_softmax or logsigmoid, or clamp the argument from below.",
        find=_log_of_probabilities,
    ),
    Rule(
        name="logsumexp-by-hand",
        risk="medium",
        message=(
            "The logarithm of a sum of exponentials: exp() overflows above 88 in FP32 (11 in "
            "FP16), and the loss becomes infinite."
        ),
        fix="Use torch.logsumexp.",
        find=_log_of_exponentials,
    ),
    Rule(
        name="sqrt-at-zero",
        risk="medium",
        message=(
            "The square root of a sum of squares: where it is 0 its gradient is infinite, and "
            "0 x infinity turns every gradient through it into NaN."
        ),
        fix="Add an epsilon under the root, or use torch.linalg.vector_norm.",
        find=_root_of_squares,
    ),
    Rule(
        name="unguarded-normalisation",
        risk="medium",
        message=(
            "Division by a standard deviation or a norm without an epsilon: constant or zero "
            "input gives NaN."
        ),
        fix="Add an epsilon to the divisor, or use torch.nn.functional.normalize.",
        find=_divides_by_spread,
    ),
)
