"""How the worker is put together."""

from __future__ import annotations

import ast
from pathlib import Path

WORKER = Path(__file__).parents[2] / "supervisor" / "worker"


def test_nothing_is_set_on_a_part_after_it_was_built() -> None:
    tree = ast.parse((WORKER / "build.py").read_text(encoding="utf-8"))

    assert [
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self"
    ] == []
