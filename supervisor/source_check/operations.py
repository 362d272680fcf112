"""Tensor operations in one form, whether written as a function, a method or a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from supervisor.source_check.names import dotted
from supervisor.source_check.source import Source, kept_for_file
from supervisor.source_check.values import full_name, origins, sole_origin, unwrapped

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
        operand = next((k.value for k in call.keywords if k.arg == "input"), None)
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
