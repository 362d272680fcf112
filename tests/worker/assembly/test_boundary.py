"""Who is called at a boundary."""

from __future__ import annotations

from pathlib import Path

from supervisor.worker.live.boundary import Boundary
from tests.worker.conftest import Start


def test_listeners_come_in_this_order(tmp_path: Path, start: Start) -> None:
    boundary = start(tmp_path / "run", ["trail=true"]).session._monitor._boundary

    assert names(boundary) == [
        "step times",
        "recorded steps",
        "variables",
        "corruption",
        "actions",
        "exact retry",
        "trail",
        "snapshots",
        "checkpoints",
        "parting checkpoint",
        "compute check",
        "memory",
        "leaving",
    ]


def test_a_run_without_a_trail_has_no_listener_for_it(tmp_path: Path, start: Start) -> None:
    assert "trail" not in names(start(tmp_path / "run").session._monitor._boundary)


def names(boundary: Boundary) -> list[str]:
    return [listener.name for listener, _ in boundary._listeners]
