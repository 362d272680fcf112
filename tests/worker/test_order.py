"""Which parts there are, and in which order they are called."""

from __future__ import annotations

from pathlib import Path

from tests.worker.conftest import Start


def test_parts_come_in_this_order(tmp_path: Path, start: Start) -> None:
    assert start(tmp_path / "run", ["trail=true"]).worker.parts.names == [
        "state",
        "step times",
        "recorded steps",
        "variables",
        "loading",
        "script files",
        "exchanges",
        "census",
        "corruption",
        "ordered treatments",
        "actions",
        "trial step",
        "exact retry",
        "trail",
        "snapshots",
        "checkpoints",
        "parting checkpoint",
        "compute check",
        "memory",
        "samples",
        "probes",
        "scene of the end",
        "healing of ranks",
        "leaving",
    ]


def test_a_run_without_a_trail_has_no_part_for_it(tmp_path: Path, start: Start) -> None:
    assert "trail" not in start(tmp_path / "run").worker.parts.names
