"""What a loader worker says of its batches, without the processes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from supervisor.training_state.rng import RngState
from supervisor.worker.core.budget import Share
from supervisor.worker.core.call_state import CallState
from supervisor.worker.loading import patches_loading as worker_watch
from supervisor.worker.loading.patches_loading import WorkerWatch
from supervisor.worker.loading.worker_proof import (
    CLOSELY,
    TIMED,
    Positioned,
    WorkerBatch,
    WorkerMark,
    WorkerProof,
)


class Pure(Dataset[Any]):
    def __init__(self) -> None:
        self.data = torch.randn(64, 4)

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.002)
        return self.data[i] + torch.randn(4) + random.random() + float(np.random.rand())


class Counting(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __getitem__(self, i: int) -> Any:
        self.seen += 1
        return super().__getitem__(i)


class InSharedMemory(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.data.share_memory_()


class InAMappedFile(Pure):
    def __init__(self, path: Any) -> None:
        super().__init__()
        self.mapped = np.memmap(path, np.float32, "w+", shape=(4,))


class LateCounting(Counting):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i) if i > 20 else Pure.__getitem__(self, i)


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    state = RngState.capture()
    yield
    RngState.restore(state)


def _worker(data: Any) -> tuple[WorkerProof, Callable[[Any], Any]]:
    proof = WorkerProof(0, data, list, promised=False)
    watch = WorkerWatch(proof, data, list, CallState())
    return proof, lambda given: watch.fetch(given, lambda indices: [data[i] for i in indices])


def _fetched(data: Any, fetches: int = CLOSELY + TIMED) -> WorkerProof:
    proof, fetch = _worker(data)
    for i in range(fetches):
        batch = fetch([2 * i, 2 * i + 1])
        if proof.is_given_up:
            assert not isinstance(batch, WorkerBatch), "nothing is noted any more"
        else:
            proof.take(batch.note)
    return proof


def test_a_worker_that_changes_nothing_is_proved() -> None:
    proof = _fetched(Pure())

    assert proof.holds(), proof.reason
    assert proof.was_watched


def test_nothing_is_proved_before_enough_was_seen() -> None:
    assert not _fetched(Pure(), CLOSELY + TIMED - 1).holds()


@pytest.mark.parametrize(
    ("make", "reason"),
    [(Counting, "changes something"), (LateCounting, "changes something")],
)
def test_a_worker_that_changes_something_is_given_up(
    make: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = Share(math.inf)  # compared each time, however slow the machine
    monkeypatch.setattr(worker_watch, "_BUDGET", always)

    proof = _fetched(make(), 25)

    assert reason in proof.reason
    assert not proof.holds()


def test_memory_that_processes_share_is_not_looked_into(tmp_path: Any) -> None:
    assert "share" in _fetched(InSharedMemory()).reason
    assert "share" in _fetched(InAMappedFile(tmp_path / "mapped")).reason


def test_a_worker_begins_where_it_is_told_to() -> None:
    data = Pure()
    _, fetch = _worker(data)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    drawn = fetch([0, 1]).note.drawn
    expected = fetch([2, 3])

    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    _, again = _worker(data)
    found = again(Positioned([2, 3], drawn))

    assert all(map(torch.equal, found.data, expected.data))
    assert found.note.drawn == expected.note.drawn
    assert found.note.astray == ""


def test_a_worker_that_was_seeded_otherwise_says_so() -> None:
    data = Pure()
    _, fetch = _worker(data)
    drawn = fetch([0, 1]).note.drawn
    random.seed(99)

    _, again = _worker(data)

    assert "not where they were" in again(Positioned([2, 3], drawn)).note.astray


def test_an_error_in_loading_passes_and_ends_the_watch() -> None:
    _, fetch = _worker(Pure())
    fetch([0])

    with pytest.raises(IndexError):
        fetch([99])

    assert not isinstance(fetch([1]), WorkerBatch)


def test_a_mark_comes_back_as_it_was_packed() -> None:
    mark = WorkerMark(3, 70_000, 5, True, False, 2, b"drawn", b"fetched")

    assert WorkerMark.unpack(mark.pack()) == mark
