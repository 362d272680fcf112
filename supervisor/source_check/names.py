"""What a name in a file stands for, seen through its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def dotted(expression: ast.AST) -> str | None:
    """Returns ``a.b.c`` for a chain of attributes on a name, else None."""
    parts: list[str] = []
    node = expression
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def last_name(expression: ast.AST) -> str:
    """Returns the last identifier of an expression: ``step`` of ``self.optimizer.step``, or ''."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, (ast.Subscript, ast.Starred)):
        return last_name(expression.value)
    if isinstance(expression, ast.Call):
        return last_name(expression.func)
    return ""


class Names:
    """The imports of one file, wherever in it they stand."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self._imported: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.split(".")[0]
                    self._imported[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom):
                package = "." * node.level + (node.module or "")
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{package}.{alias.name}"

    def resolve(self, expression: ast.AST) -> str:
        """Returns the full dotted name behind an imported name, or '' for anything else.

        ``F.softmax`` after ``from torch.nn import functional as F`` is
        ``torch.nn.functional.softmax``; ``model.softmax`` is ''.
        """
        name = dotted(expression)
        if name is None:
            return ""
        root, _, rest = name.partition(".")
        if root not in self._imported:
            return ""
        return f"{self._imported[root]}.{rest}" if rest else self._imported[root]

    def is_torch(self, expression: ast.AST, *endings: str) -> bool:
        """Is this a name imported from torch whose last part is one of ``endings``?"""
        name = self.resolve(expression)
        return name.split(".")[0] == "torch" and name.rsplit(".", 1)[-1] in endings

    def imports(self, package: str) -> bool:
        """Does the file import ``package`` or anything in it?"""
        return any(name.split(".")[0] == package for name in self._imported.values())
