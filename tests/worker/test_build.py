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


MANY = {"Live", "Replay"}  # the drivers, in which each moment is written out


def test_no_constructor_but_the_drivers_takes_more_than_eight_things() -> None:
    found = {}
    for path in sorted(WORKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                        found[node.name] = len(method.args.args) - 1 + len(method.args.kwonlyargs)

    assert {name for name, count in found.items() if count > 8} == MANY
