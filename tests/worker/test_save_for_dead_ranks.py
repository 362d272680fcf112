"""A checkpoint made of what a killed process kept is the one that it would have saved itself."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.errors import CheckpointError
from supervisor.held_memory import PLACES, HeldMemory
from supervisor.storage.run.kept_memory import KeptMemory
from supervisor.training_state.state import digest, read_state
from supervisor.worker import save_for_dead_ranks
from supervisor.worker.checkpoints.rank_memory import KEPT_BEGAN
from tests.worker.conftest import Start

ALWAYS = ("checkpoint.every_steps=1000", "parting.every_steps=1")


@pytest.fixture
def memory() -> Iterator[KeptMemory]:
    kept = KeptMemory(1)
    yield kept
    kept.close()


def test_a_killed_process_leaves_the_checkpoint_of_its_last_boundary(
    tmp_path: Path, start: Start, memory: KeptMemory
) -> None:
    usual = start(tmp_path / "usual", ["checkpoint.every_steps=7"])
    usual.steps(8)  # the eighth passes the boundary of seven
    usual.stop()
    live = start(tmp_path / "run", ALWAYS, kept=memory.places["0"])
    live.steps(8)  # and nothing more: as if killed

    assert memory.newest_step() == 7
    saved = save_for_dead_ranks.save_for_dead(live.rundir, 7, dict(memory.places))

    states = [read_state(run.rundir.checkpoints / saved.path.name) for run in (usual, live)]
    for state in states:
        state.pop("census", None)  # holds how it was packed
    assert digest(states[0]) == digest(states[1])
    assert (saved.step, saved.reason, saved.stable) == (7, "parting", False)
    assert KEPT_BEGAN not in saved.meta
    assert live.rundir.replay_log(0).stat().st_size >= saved.meta["tape_offset"] > 0


def test_without_every_ranks_state_nothing_is_saved(
    tmp_path: Path,
    start: Start,
    memory: KeptMemory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = start(tmp_path / "run", ALWAYS, kept=memory.places["0"])
    live.steps(8)
    both = {"0": memory.places["0"], "1": memory.places["0"]}

    with pytest.raises(CheckpointError, match="another node's memory"):
        save_for_dead_ranks.save_for_dead(live.rundir, 7, both)
    with pytest.raises(CheckpointError, match="no state of step 5"):
        save_for_dead_ranks.save_for_dead(live.rundir, 5, dict(memory.places))
    order = {"run_dir": str(live.rundir.root), "places": dict(memory.places)}
    monkeypatch.setattr("sys.stdin", io.StringIO("5\n"))
    assert save_for_dead_ranks.main([json.dumps(order)]) == 0

    assert "no state of step 5" in json.loads(capsys.readouterr().out)["problem"]
    assert live.checkpoints() == []


def test_a_state_that_trouble_followed_is_not_kept(
    tmp_path: Path, start: Start, memory: KeptMemory
) -> None:
    live = start(tmp_path / "run", ALWAYS, kept=memory.places["0"])
    live.steps(30)
    assert memory.newest_step() == 29

    live.step(scale=float("nan"))
    live.steps(2)

    assert memory.newest_step() is None


def test_what_does_not_fit_into_memory_is_told_once(
    tmp_path: Path, start: Start, memory: KeptMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldMemory, "allows", lambda *given: given[1] != PLACES)
    live = start(tmp_path / "run", ALWAYS, kept=memory.places["0"])

    live.steps(8)

    told = [e["message"] for e in live.events("warning") if "not kept in memory" in e["message"]]
    assert len(told) == 1
    assert memory.newest_step() is None
