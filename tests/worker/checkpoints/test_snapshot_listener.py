"""Snapshots come as often as their cost allows, within limits that grow with the run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from supervisor.training_state.snapshot import SnapshotRing
from tests.worker.conftest import Start


def test_a_longer_run_may_lose_more_steps_by_a_rollback(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    take = SnapshotRing.take

    def noted(self: SnapshotRing, step: int, *rest: object) -> float:
        steps.append(step)
        return take(self, step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(SnapshotRing, "take", noted)
    live = start(tmp_path / "run", ["checkpoint.every_steps=10000", "parting.enabled=false"])

    live.steps(2300)  # of less than a millisecond: a copy costs more than its share allows
    live.stop()

    apart = {step: later - step for step, later in itertools.pairwise(steps)}
    assert all(steps <= max(50, 0.05 * step) for step, steps in apart.items())
    assert max(steps for step, steps in apart.items() if step < 1000) == 50
    assert max(apart.values()) == 100
