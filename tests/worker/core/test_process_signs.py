"""The sign of life beside the steps."""

from __future__ import annotations

from pathlib import Path

from supervisor.worker.core.process_signs import Heartbeat


def test_only_what_follows_the_first_of_a_step_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "alive" / "rank_0"
    life = Heartbeat(path)

    for step in (0, 1, 2):
        life.beat(step)
    silent = path.read_bytes()
    life.beat(2)

    assert silent == bytes(8)
    assert path.read_bytes() != silent
