"""Tensor operations in one form, whether written as a function, a method or a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from supervisor.source_check.scope import dotted, last_name
from supervisor.source_check.source import Source, kept_for_file
from supervisor.source_check.values import callers, full_name, origins, sole_origin, unwrapped

_MODULES = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "KLDivLoss": "kl_div",
}
RELAYS = frozenset(
    {"view", "reshape", "squeeze", "unsqueeze", "gather", "transpose", "t", "flatten"}
)
"""Operations that move values without changing them."""
LOSSES = frozenset(_MODULES.values()) - {"softmax", "log_softmax", "sigmoid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of a tensor operation."""

    name: str
    """The function's name: ``softmax`` for ``nn.Softmax(1)(x)`` and ``x.softmax(1)`` too."""
    operand: ast.expr | None
    """The first tensor, or None if it is not written as an expression of its own."""
    arguments: tuple[ast.expr, ...]
    """All positional arguments after the operand."""
    call: ast.Call


@kept_for_file
def operation_of(source: Source, node: ast.AST) -> Operation | None:
    """Returns the tensor operation that ``node`` calls, or None if it is no call of one."""
    if not isinstance(node, ast.Call):
        return None
    resolved = full_name(source, node.func)
    if resolved:
        root, name = resolved.split(".")[0], resolved.rsplit(".", 1)[-1]
        if root != "torch" or name[:1].isupper():
            return None
        return _from_function(name, node)
    module = _module_behind(source, node.func)
    if module is not None:
        return _from_function(module, node)
    if isinstance(node.func, ast.Attribute) and dotted(node.func.value) != "self":
        return Operation(
            name=node.func.attr, operand=node.func.value, arguments=tuple(node.args), call=node
        )
    return None


def _from_function(name: str, call: ast.Call) -> Operation:
    operand = call.args[0] if call.args else None
    if operand is None:
        operand = keyword_of(call, "input")
    return Operation(name=name, operand=operand, arguments=tuple(call.args[1:]), call=call)


def _module_behind(source: Source, called: ast.expr) -> str | None:
    """The torch module behind a name: ``criterion`` in ``criterion(output, target)``."""
    made = {unwrapped(o) for o in origins(source, called)}
    kinds = {module_kind(source, each) for each in made if isinstance(each, ast.Call)}
    return kinds.pop() if len(kinds) == 1 else None


def module_kind(source: Source, expression: ast.expr | None) -> str | None:
    """Returns the function that a module such as ``nn.Softmax(dim=1)`` computes.

    For a ``Sequential`` that of its last layer.
    """
    made = unwrapped(expression) if expression is not None else None
    if not isinstance(made, ast.Call):
        return None
    name = full_name(source, made.func)
    if not name.startswith("torch."):
        return None
    if name.endswith(".Sequential") and made.args:
        return module_kind(source, sole_origin(source, made.args[-1]))
    return _MODULES.get(name.rsplit(".", 1)[-1])


def value_behind(source: Source, expression: ast.expr | None) -> ast.expr | None:
    """Returns where a value comes from, past reshapes and indexing."""
    current = sole_origin(source, expression) if expression is not None else None
    for _ in range(6):
        if isinstance(current, ast.Subscript):
            current = sole_origin(source, current.value)
            continue
        operation = operation_of(source, current) if current is not None else None
        if operation is None or operation.name not in RELAYS or operation.operand is None:
            return current
        current = sole_origin(source, operation.operand)
    return current


def operation_behind(source: Source, expression: ast.expr | None) -> Operation | None:
    """Returns the one operation whose result this is, past reshapes and indexing."""
    value = value_behind(source, expression)
    return operation_of(source, value) if value is not None else None


def operations(source: Source, *names: str) -> Iterator[Operation]:
    """Yields every call of the named operations in the file."""
    wanted = frozenset(names)
    for _, call in source.all(ast.Call):
        operation = operation_of(source, call)
        if operation is not None and operation.name in wanted:
            yield operation


def is_literal(expression: ast.AST | None, value: object) -> bool:
    """Is this the literal ``value`` (of the same type)?"""
    return (
        isinstance(expression, ast.Constant)
        and type(expression.value) is type(value)
        and expression.value == value
    )


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """Returns the value given for keyword ``name`` of a call."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


Test = Callable[[Source, ast.expr], bool | None]
"""Does this context manager switch the mode on (True), off (False), or not touch it (None)?"""


def autocast_switch(source: Source, context: ast.expr) -> bool | None:
    """True for an ``autocast(...)`` context, False for one that is disabled, else None."""
    for origin in origins(source, context):
        for node in (origin, *_branches(origin)):
            if isinstance(node, ast.Call) and _is_autocast(source, node.func):
                enabled = keyword_of(node, "enabled")
                disabled = is_literal(enabled, False) or any(
                    is_literal(a, False) for a in node.args
                )
                return not disabled
    return None


def _is_autocast(source: Source, function: ast.expr) -> bool:
    return last_name(function) == "autocast" or full_name(source, function).endswith("autocast")


def no_grad_switch(source: Source, context: ast.expr) -> bool | None:
    """True for a context in which no gradients are recorded, False where they are again."""
    for origin in origins(source, context):
        for node in (origin, *_branches(origin)):
            if any(word in last_name(node) for word in ("no_grad", "inference_mode")):
                return True
            if last_name(node) == "enable_grad":
                return False
            if isinstance(node, ast.Call) and last_name(node.func) == "set_grad_enabled":
                return not any(is_literal(argument, True) for argument in node.args)
    return None


def _branches(expression: ast.expr) -> tuple[ast.expr, ...]:
    if isinstance(expression, ast.IfExp):
        return expression.body, expression.orelse
    return ()


def region(
    source: Source, node: ast.AST, test: Test, seen: frozenset[str] = frozenset()
) -> ast.AST | None:
    """Returns the ``with`` or the function around ``node`` that switches a mode on, or None.

    A function counts if it is decorated so, or if every call of it in this file is in such a
    region. ``seen`` are those being asked about already.
    """
    for ancestor in source.ancestors(node):
        if isinstance(ancestor, (ast.With, ast.AsyncWith)):
            for item in reversed(ancestor.items):
                switched = test(source, item.context_expr)
                if switched is not None and not source.is_inside(node, item):
                    return ancestor if switched else None
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _region_of_function(source, ancestor, test, seen)
    return None


def _region_of_function(
    source: Source,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    test: Test,
    seen: frozenset[str],
) -> ast.AST | None:
    for decorator in function.decorator_list:
        switched = test(source, decorator)
        if switched is not None:
            return function if switched else None
    if function.name in seen or function.name.startswith("__"):
        return None
    calls = [call for call in callers(source, function) if not source.is_inside(call, function)]
    seen |= {function.name}
    if calls and all(region(source, call, test, seen) is not None for call in calls):
        return function
    return None


_INFERENCE = re.compile(
    r"(^|_)(generate|sample|predict|infer|inference|post_?process|decode|evaluate|eval"
    r"|validate|test|metrics?|extract|visuali[sz]e|plot|reference)($|_)|Pipeline|FeatureExtractor|Processor"
    r"|Metric|Tokenizer|Scheduler|Transform",
)


_COMPARED_WITH = frozenset({"reference_fn", "ref", "reference"})
"""Parameters for the expected values of tests."""


def is_inference_code(source: Source, node: ast.AST) -> bool:
    """Do the names of file, classes and functions around ``node`` say that it is for inference?"""
    if source.path.stem in {"metric", "metrics"}:
        return True
    for ancestor in source.ancestors(node):
        named = isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if named and _INFERENCE.search(getattr(ancestor, "name", "")):
            return True
        if isinstance(ancestor, ast.keyword) and ancestor.arg in _COMPARED_WITH:
            return True
    return False


def is_trained_code(source: Source, node: ast.AST) -> bool:
    """Can a gradient flow here, as far as the file tells?"""
    return not without_gradients(source, node) and not is_inference_code(source, node)


def under_autocast(source: Source, node: ast.AST) -> ast.AST | None:
    """Returns what puts ``node`` under autocast, or None."""
    return region(source, node, autocast_switch)


def without_gradients(source: Source, node: ast.AST) -> bool:
    """Does ``node`` surely run with gradients off?"""
    return region(source, node, no_grad_switch) is not None
