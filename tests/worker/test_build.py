"""How the worker is put together."""

from __future__ import annotations

import ast
from pathlib import Path

from supervisor.worker.live.boundary import Boundary
from tests.worker.conftest import Start

WORKER = Path(__file__).parents[2] / "supervisor" / "worker"


def test_listeners_come_in_this_order(tmp_path: Path, start: Start) -> None:
    boundary = start(tmp_path / "run", ["trail=true"]).session._monitor._boundary

    assert names(boundary) == [
        "step times",
        "first step",
        "variables",
        "corruption",
        "actions",
        "exact retry",
        "trail",
        "snapshots",
        "checkpoints",
        "parting checkpoint",
        "leaving",
    ]


def test_a_run_without_a_trail_has_no_listener_for_it(tmp_path: Path, start: Start) -> None:
    assert "trail" not in names(start(tmp_path / "run").session._monitor._boundary)


def test_nothing_is_set_on_a_part_after_it_was_built() -> None:
    tree = ast.parse((WORKER / "build.py").read_text(encoding="utf-8"))

    assert [
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
    ] == ["probe.in_environment"]


def names(boundary: Boundary) -> list[str]:
    return [listener.name for listener, _ in boundary._listeners]
