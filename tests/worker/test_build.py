"""How the worker is put together."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "supervisor" / "worker"
FILES = [WORKER / "build.py", *sorted((WORKER / "assembly").glob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_set_on_a_part_after_it_was_built(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))

    assert [
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self"
    ] == []
