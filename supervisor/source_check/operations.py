"""Tensor operations in one form, whether written as a function, a method or a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from supervisor.source_check.names import dotted, last_name
from supervisor.source_check.scope import Scope
from supervisor.source_check.source import Source
from supervisor.source_check.values import origins

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
LOSSES = frozenset(
    {
        "cross_entropy",
        "nll_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "kl_div",
    }
)


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

    def keyword(self, name: str) -> ast.expr | None:
        """Returns the value given for keyword ``name``."""
        for keyword in self.call.keywords:
            if keyword.arg == name:
                return keyword.value
        return None


@lru_cache(maxsize=4096)
def operation_of(source: Source, node: ast.AST) -> Operation | None:
    """Returns the tensor operation that ``node`` calls, or None if it is no call of one."""
    if not isinstance(node, ast.Call):
        return None
    resolved = source.names.resolve(node.func)
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
        operand = next((k.value for k in call.keywords if k.arg == "input"), None)
    return Operation(name=name, operand=operand, arguments=tuple(call.args[1:]), call=call)


def _module_behind(source: Source, called: ast.expr) -> str | None:
    """``criterion`` in ``criterion(output, target)``: which of torch's modules it was made from."""
    if isinstance(called, ast.Call):
        return module_kind(source, called)
    key = dotted(called)
    if key is None:
        return None
    for origin in origins(source, called):
        if isinstance(origin, ast.Call):
            return module_kind(source, origin)
    if key in source.scope_of(called).parameters:
        return None
    kinds = {
        module_kind(source, assignment.value)
        for scope, assignment in source.assignments(key)
        if _shares(source, scope, called, key)
    }
    return kinds.pop() if len(kinds) == 1 else None


def _shares(source: Source, scope: Scope, name: ast.expr, key: str) -> bool:
    """Attributes of self are shared by the methods of a class, other names by enclosing scopes."""
    if key.startswith("self."):
        owner = source.class_of(name)
        return owner is not None and source.class_of(scope.node) is owner
    own = source.scope_of(name)
    return scope is own or source.is_inside(own.node, scope.node)


def module_kind(source: Source, expression: ast.expr | None) -> str | None:
    """Returns the function that ``nn.Softmax(dim=1)`` and its like compute when called."""
    while isinstance(expression, ast.Call) and last_name(expression.func) in {"to", "cuda"}:
        function = expression.func
        expression = function.value if isinstance(function, ast.Attribute) else None
    if not isinstance(expression, ast.Call):
        return None
    name = source.names.resolve(expression.func)
    if not name.startswith("torch."):
        return None
    return _MODULES.get(name.rsplit(".", 1)[-1])


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
