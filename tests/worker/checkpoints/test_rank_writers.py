"""Checkpoints of ranks whose replicas have come to differ: named, not saved, gone back from."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import torch

from supervisor.errors import CheckpointError
from supervisor.ranks import RankPlace
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.state import FORMAT
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint, CheckpointWriter
from supervisor.worker.checkpoints.rank_writers import FirstRankWriter, OtherRankWriter
from supervisor.worker.checkpoints.split_replicas import SplitReplicas
from supervisor.worker.core.boundaries import BoundarySchedule
from supervisor.worker.core.progress import Progress, RunWarnings
from supervisor.worker.core.step_probe import StepProbe
from tests.storage.failing_file_system import FastDisk

WORLD = 3
NAME = "models.model_0.module.weight"


class Ranks:
    """Three ranks that save together, each in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.may_go_back = True
        self.folder = folder
        self.ring = self._ring()
        self.schedule = BoundarySchedule()
        journal = Journal(folder / "events.jsonl", attempt=1, rank=0)
        replicas = SplitReplicas(
            ring=self.ring,
            schedule=self.schedule,
            journal=journal,
            warn=RunWarnings(journal, Progress(StepProbe())),
            may_go_back=lambda: self.may_go_back,
        )
        places = [RankPlace(rank=rank, world_size=WORLD) for rank in range(WORLD)]
        given: dict[str, Any] = {"attempt": 1, "timeout_s": 20.0}
        main = FirstRankWriter(
            self.ring, lambda: None, place=places[0], on_split=replicas.found, **given
        )
        others = [
            OtherRankWriter(self._ring(), lambda: None, place=place, alike=lambda: {NAME}, **given)
            for place in places[1:]
        ]
        self.writers: list[CheckpointWriter] = [main, *others]

    def save(self, step: int, odd: int | None = None) -> None:
        threads = [
            threading.Thread(target=self._save, args=(rank, step, rank == odd))
            for rank in range(WORLD)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def _save(self, rank: int, step: int, is_odd: bool) -> None:
        weight = torch.full((1024,), float(step))
        if is_odd:
            weight[17] = 1e30
        tensors = {"module.weight": weight, "module.other": torch.ones(1024)}
        state = {"format": FORMAT, "models": {"model_0": tensors}}
        given = CapturedCheckpoint(step=step, state=state, meta={}, reason="test", sections={})
        with contextlib.suppress(CheckpointError):
            self.writers[rank].write(given)

    def _ring(self) -> CheckpointRing:
        settings = CheckpointSettings(min_free_gib=0.0)
        return CheckpointRing(self.folder / "checkpoints", settings, file_system=FastDisk())


def test_the_odd_rank_is_named_and_all_go_back_to_where_they_were_alike(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)

    ranks.save(8)
    ranks.save(16, odd=2)

    assert [one.step for one in ranks.ring.checkpoints()] == [8]
    (found,) = [event for event in ranks.events() if event["kind"] == "corruption_found"]
    assert (found["tensor"], found["ranks"], found["healed"]) == (NAME, [2], "rollback")
    assert (found["from_step"], found["step"]) == (8, 16)
    assert ranks.schedule.leave is not None
    assert ranks.schedule.leave[0] == "retry"


def test_the_first_rank_can_be_the_odd_one(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)

    ranks.save(8)
    ranks.save(16, odd=0)

    (found,) = [event for event in ranks.events() if event["kind"] == "corruption_found"]
    assert found["ranks"] == [0]


def test_who_must_not_treat_is_told_once_and_saves(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)

    ranks.save(8)
    ranks.may_go_back = False  # from here on this rank is only watched
    ranks.save(16, odd=1)
    ranks.save(24, odd=1)

    assert [one.step for one in ranks.ring.checkpoints()] == [8, 16, 24]
    (found,) = [event for event in ranks.events() if event["kind"] == "corruption_found"]
    assert (found["ranks"], found["healed"]) == ([1], "no")
    assert ranks.schedule.leave is None


def test_replicas_that_were_never_alike_are_nobodys_fault(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)

    ranks.save(8, odd=2)
    ranks.save(16, odd=2)

    assert [one.step for one in ranks.ring.checkpoints()] == [8, 16]
    assert not (tmp_path / "events.jsonl").exists()
