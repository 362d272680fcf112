"""Who writes the checkpoints, of which rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import load_config, load_policy, save_resolved
from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.storage.run.run_state import save_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker.build import BuiltWorker
from supervisor.worker.checkpoints.checkpoint_writer import SingleWriter
from supervisor.worker.checkpoints.rank_writers import FirstRankWriter, OtherRankWriter


@pytest.mark.parametrize(
    ("place", "writer"),
    [
        (RankPlace(), SingleWriter),
        (RankPlace(rank=0, world_size=2, local_world_size=2), FirstRankWriter),
        (RankPlace(rank=1, world_size=2, local_rank=1, local_world_size=2), OtherRankWriter),
    ],
)
def test_each_rank_has_a_writer_for_its_place(
    tmp_path: Path, place: RankPlace, writer: type
) -> None:
    rundir = RunDirectory(tmp_path / "run")
    rundir.make(rundir.root)
    save_resolved(load_config(), rundir.config_yaml)
    save_resolved(load_policy(), rundir.policy_yaml)
    save_order(rundir, WorkerOrder(attempt=1))

    worker = BuiltWorker(rundir, 1, place)

    assert isinstance(worker.checkpointer._writer, writer)
    worker.session.stop(completed=False)
