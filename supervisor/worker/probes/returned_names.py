"""What a model's own source calls the parts of the tuple that its forward returns."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import tokenize
from typing import Any

from torch import nn

from supervisor.training_state.user_code import source_lines


def returned_names(module: nn.Module) -> tuple[str, ...]:
    """Returns the names in ``return decoded(z), mu, logvar``: ``("", "mu", "logvar")``.

    A part that is no plain name has none. Empty if the source is not at hand, or if two returns of
    a forward disagree.
    """
    kind: Any = type(module)
    return _names(kind)


@functools.lru_cache(maxsize=64)
def _names(kind: Any) -> tuple[str, ...]:
    forward = inspect.unwrap(kind.forward)
    try:
        lines, _ = source_lines(forward.__code__, forward.__globals__)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (AttributeError, OSError, SyntaxError, tokenize.TokenError):
        return ()
    found = {
        tuple(_name(part) for part in node.value.elts)
        for node in _own_nodes(tree.body[0])
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    }
    return found.pop() if len(found) == 1 else ()


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """All nodes of a function's body, without those of functions inside of it."""
    nodes: list[ast.AST] = []
    waiting: list[Any] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return nodes


def _name(part: ast.expr) -> str:
    if isinstance(part, ast.Name):
        return part.id
    return part.attr if isinstance(part, ast.Attribute) else ""
