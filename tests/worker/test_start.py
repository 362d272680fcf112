"""A worker whose supervision cannot begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.storage.run.run_state import save_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker import build
from supervisor.worker.core.process_signs import SHORT, ExitRequest
from supervisor.worker.start import start_session


@pytest.fixture(autouse=True)
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError("no such memory")

    monkeypatch.setattr(build, "BuiltWorker", broken)


def started(folder: Path, place: RankPlace, checkpoint_step: int | None) -> object:
    rundir = RunDirectory(folder)
    save_order(rundir, WorkerOrder(attempt=2, checkpoint_step=checkpoint_step))
    given = SimpleNamespace(place=place, kept=[], salt=None)
    return start_session(rundir, 2, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [None, 40])
def test_a_script_alone_runs_as_without_it(
    tmp_path: Path, step: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert started(tmp_path, RankPlace(), step) is None
    assert "no such memory: supervision is off" in capfd.readouterr().err


def test_ranks_that_begin_anew_run_as_without_it(tmp_path: Path) -> None:
    assert started(tmp_path, RankPlace(rank=1, world_size=2), None) is None


def test_a_rank_does_not_train_from_the_start_while_others_resume(tmp_path: Path) -> None:
    with pytest.raises(ExitRequest) as leaving:
        started(tmp_path, RankPlace(rank=1, world_size=2), 40)

    assert leaving.value.note == SHORT
    assert "no such memory" in leaving.value.reason
