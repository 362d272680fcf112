"""What loader workers that were started in a replay do not see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.part import Arrived
from supervisor.worker.loading.loading_proofs import LoadingProofs
from supervisor.worker.loading.worker_proof import Iteration, WorkerNote, WorkerProof
from supervisor.worker.loading.workers_data import WorkersData


class Rewards(Dataset[Any]):
    def __init__(self) -> None:
        self.values = torch.zeros(8)
        self.shared = torch.zeros(8).share_memory_()
        self.counts = np.zeros(8)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


@pytest.fixture
def rewards() -> Rewards:
    return Rewards()


@pytest.fixture
def under_way(rewards: Rewards) -> Iterator[Any]:
    iterator = iter(DataLoader(rewards, num_workers=1))
    next(iterator)
    yield iterator
    iterator._shutdown_workers()


@pytest.mark.parametrize("name", ["values", "counts"])
def test_what_is_put_back_after_workers_were_started_is_named(
    rewards: Rewards, under_way: Any, name: str
) -> None:
    data = WorkersData()

    getattr(rewards, name)[2] = 1

    ((path, iterator),) = data.outdated().items()
    assert path.endswith(f"dataset.{name}")
    assert iterator is under_way


@pytest.mark.usefixtures("under_way")
def test_shared_memory_is_seen_by_the_workers(rewards: Rewards) -> None:
    data = WorkersData()

    rewards.shared[2] = 1

    assert not data.outdated()


def test_a_data_set_without_running_workers_is_put_back_whole(
    rewards: Rewards, under_way: Any
) -> None:
    under_way._shutdown_workers()
    data = WorkersData()

    rewards.values[2] = 1

    assert not data.outdated()


def test_batches_of_outdated_workers_are_loaded_again_unless_loading_draws_or_changes(
    rewards: Rewards, under_way: Any
) -> None:
    proofs = LoadingProofs(CallState(), promised=False)
    proof = WorkerProof(0, rewards, len, promised=False)
    iteration = proofs.iterations[under_way] = Iteration(0, proof)
    pure, drawing = WorkerNote(b"", True), WorkerNote(b"1", True)
    changing = WorkerNote(b"", False, fault="it counts")
    assert not iteration.is_to_be_loaded_here(pure)

    proofs.before_state()
    rewards.values[2] = 1
    (reason,) = proofs.after_state(Arrived(step=1, path=None, state={}, meta={}))  # type: ignore[arg-type]

    assert "dataset.values" in reason
    notes = (pure, drawing, changing, None)
    assert [iteration.is_to_be_loaded_here(note) for note in notes] == [True, False, False, False]
