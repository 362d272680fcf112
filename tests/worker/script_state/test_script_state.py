"""A checkpoint without the census of the script's variables is resumed by approximation."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from supervisor.training_state.state import read_state
from tests.worker.conftest import Start


def test_every_checkpoint_holds_the_census_whatever_it_takes(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(tmp_path / "run", ["checkpoint.every_steps=3", "checkpoint.background=false"])
    clock = itertools.count(0.0, 100.0)
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))

    live.steps(8)
    live.stop()

    states = [read_state(live.rundir.checkpoints / f"step_{step:08d}") for step in (3, 6)]
    assert all("census" in state for state in states)
