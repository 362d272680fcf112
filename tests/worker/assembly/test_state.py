"""Who writes the checkpoints, of which rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import load_config, load_policy
from supervisor.held_memory import HeldMemory
from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker.assembly.ground import Task, build_ground
from supervisor.worker.assembly.recorders import build_recorders
from supervisor.worker.assembly.state import build_checkpointer, build_ring
from supervisor.worker.capture.follower_writer import FollowerWriter
from supervisor.worker.capture.lead_writer import LeadWriter
from supervisor.worker.capture.single_writer import SingleWriter


@pytest.mark.parametrize(
    ("place", "writer"),
    [
        (RankPlace(), SingleWriter),
        (RankPlace(rank=0, world_size=2, local_world_size=2), LeadWriter),
        (RankPlace(rank=1, world_size=2, local_rank=1, local_world_size=2), FollowerWriter),
    ],
)
def test_each_rank_has_a_writer_for_its_place(
    tmp_path: Path, place: RankPlace, writer: type
) -> None:
    task = task_at(tmp_path, place)
    ground = build_ground(task)
    ring = build_ring(task, ground.journal)
    recorders = build_recorders(task, ground, start=None)

    checkpointer = build_checkpointer(
        task, ground, ring, recorders.tape, HeldMemory(task.settings.snapshot)
    )

    assert isinstance(checkpointer._writer, writer)
    checkpointer.close()
    recorders.tape.close()
    recorders.recorder.close()


def task_at(folder: Path, place: RankPlace) -> Task:
    rundir = RunDirectory(folder / "run")
    rundir.make(rundir.root)
    return Task(
        rundir=rundir,
        attempt=1,
        place=place,
        settings=load_config(),
        policy=load_policy(),
        order=WorkerOrder(attempt=1),
        kept=(),
    )
