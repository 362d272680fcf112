"""Regions of a file that run under autocast or without gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from supervisor.source_check.calls import callers
from supervisor.source_check.names import last_name
from supervisor.source_check.operations import is_literal, keyword_of
from supervisor.source_check.source import Source
from supervisor.source_check.values import full_name, origins

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
