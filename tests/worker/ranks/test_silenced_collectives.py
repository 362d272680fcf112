"""Collectives of a replay are sent by nobody, and nobody waits for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.worker.ranks.exchanges import CommonBeginning, Counts, Exchanges
from supervisor.worker.ranks.silenced_collectives import (
    SilencedCollectives,
    note_objects,
    recorded_objects,
)


@pytest.fixture
def one_of_two() -> Iterator[SilencedCollectives]:
    """This process is rank 0 of two; the other does nothing."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    collectives = SilencedCollectives()
    collectives.enter()
    collectives.start()
    yield collectives
    collectives.leave()
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names for the same
def test_every_kind_of_collective_returns_at_once_and_changes_nothing(
    one_of_two: SilencedCollectives,
) -> None:
    x = torch.arange(4.0)
    parts = [torch.ones(4), torch.ones(4)]

    work = dist.all_reduce(x, async_op=True)
    dist.broadcast(x, 1)
    dist.all_gather(parts, x)
    dist.all_gather_into_tensor(torch.zeros(8), x)
    dist.reduce(x, 0)
    dist.reduce_scatter_tensor(torch.zeros(2), x)
    dist.all_to_all_single(torch.zeros(4), x)
    dist.send(x, 1)
    dist.recv(x, 1)
    dist.barrier()
    both = [dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, x, 1)]
    for request in dist.batch_isend_irecv(both):
        request.wait()

    assert work is not None
    assert work.wait()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert [part.tolist() for part in parts] == [[1.0] * 4] * 2
    assert one_of_two.silenced >= 11


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.usefixtures("one_of_two")
def test_handles_tell_that_all_is_done_and_what_has_come() -> None:
    x, parts = torch.arange(2.0), [torch.ones(2), torch.ones(2)]

    summed = dist.all_reduce(x, async_op=True)
    gathered = dist.all_gather(parts, x, async_op=True)
    barrier = dist.barrier(async_op=True)
    half = summed.get_future().then(lambda future: future.value()[0] / 2)

    assert [work.is_completed() for work in (summed, gathered, barrier)] == [True] * 3
    assert half.wait().tolist() == [0.0, 0.5]
    assert summed.result()[0] is x
    assert [part is one for part, one in zip(gathered.result(), parts, strict=True)] == [True] * 2
    assert barrier.get_future().wait() == []


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_functional_collectives_return_tensors_of_the_right_shape(
    one_of_two: SilencedCollectives,
) -> None:
    x, group = torch.ones(4, 3), dist.group.WORLD

    assert functional.all_reduce(x, "sum", group).shape == (4, 3)
    assert functional.all_gather_tensor(x, 0, group).shape == (8, 3)
    assert functional.reduce_scatter_tensor(x, "sum", 0, group).shape == (2, 3)
    assert functional.all_to_all_single(x, [1, 3], [2, 2], group).shape == (4, 3)
    waits = functional.all_reduce(x, "sum", group)
    assert isinstance(waits, functional.AsyncCollectiveTensor)
    assert waits.wait().shape == (4, 3)


def test_what_all_ranks_do_alike_is_sent() -> None:
    collectives = SilencedCollectives()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    gathered = [torch.zeros(2)]
    try:
        collectives.enter()
        collectives.start()
        dist.all_gather(gathered, torch.ones(2))
        silent = gathered[0].tolist()
        with collectives.really():
            dist.all_gather(gathered, torch.ones(2))
    finally:
        collectives.leave()
        dist.destroy_process_group()

    assert silent == [0.0, 0.0]
    assert gathered[0].tolist() == [1.0, 1.0]


class Place:
    """Counts who waits, and knows whether this rank is gone."""

    waited, left = 0, False

    def wait(self) -> None:
        self.waited += 1

    def leave(self) -> None:
        self.left = True


def test_a_barrier_of_all_ranks_is_one_without_anything_sent() -> None:
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    place = Place()
    collectives = SilencedCollectives(place)  # type: ignore[arg-type]
    part = dist.new_group([0])
    collectives.enter()
    dist.barrier()  # sent: the training has not begun
    collectives.start()

    dist.barrier()
    dist.barrier(async_op=True)
    dist.barrier(group=part)
    dist.all_reduce(torch.ones(2))
    collectives.leave()
    dist.barrier()
    dist.destroy_process_group()

    assert (place.waited, place.left) == (2, True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_before_the_training_only_what_all_ranks_do_before_theirs_is_sent() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    exchanges = Exchanges()
    collectives = SilencedCollectives(exchanges=exchanges)
    name = dist.distributed_c10d._world.pg_names[dist.group.WORLD]
    calls = exchanges.calls(dist.group.WORLD)
    assert calls is not None
    collectives.beginning = CommonBeginning({0: Counts({name: calls + 2})})
    early: list[int] = []
    collectives.silent_early = lambda: early.append(collectives.silenced)
    received = []
    try:
        collectives.enter()
        for _ in range(3):
            gathered = torch.zeros(2)
            dist.all_gather_into_tensor(gathered, torch.ones(2))
            received.append(gathered.tolist())
        assert functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).tolist() == [0, 0]
    finally:
        collectives.leave()
        dist.destroy_process_group()

    assert received == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    assert early[0] == 0
    assert collectives.silenced >= 2


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_memory_that_nothing_was_received_into_holds_values_that_can_be_used(
    one_of_two: SilencedCollectives,
) -> None:
    rates = torch.tensor([1.0, float("nan"), float("inf")])
    labels, own = torch.tensor([2**40, -7]), torch.tensor([5, 6])

    dist.recv(rates, 1)
    dist.recv(labels, 1)
    dist.broadcast(own, 0)  # from this rank

    assert rates.tolist() == [1.0, 0.0, 0.0]
    assert labels.tolist() == [0, 0]
    assert own.tolist() == [5, 6]


def test_a_generator_that_ranks_make_the_same_keeps_a_state(
    one_of_two: SilencedCollectives,
) -> None:
    generator = torch.Generator().manual_seed(5)
    state = generator.get_state()

    dist.broadcast(state, 1)
    generator.set_state(state)

    assert generator.initial_seed() == 5


@dataclasses.dataclass
class Figures:
    loss: float
    seen: tuple[int, int]
    rows: torch.Tensor


class Opaque:
    pass


def _replayed(
    path: Path, objects: list[Any], *, all_have: bool
) -> tuple[Any, list[Any], list[str]]:
    replay_log = ReplayLogWriter(path)

    note_objects(replay_log, objects, 1, all_have=all_have)
    replay_log.close()
    again: list[Any] = [None] * len(objects)
    asked: list[str] = []
    result = recorded_objects(
        ReplayLogReader(path, end=path.stat().st_size), again, lambda: asked.append("again")
    )
    return result, again, asked


def test_plain_values_data_classes_and_tensors_come_back(tmp_path: Path) -> None:
    told = [{"rank": 0, "best": None}, Figures(0.1 + 0.2, (3, 4), torch.arange(3)), float("inf")]

    result, again, asked = _replayed(tmp_path / "tape", told, all_have=False)

    assert (result, asked) == (1, [])
    assert again[0] == told[0]
    assert isinstance(again[1], Figures)
    assert (again[1].loss, again[1].seen) == (0.1 + 0.2, (3, 4))
    assert again[1].rows.tolist() == [0, 1, 2]
    assert again[2] == float("inf")


def test_what_has_no_plain_form_is_exchanged_again_where_all_ranks_have_it(tmp_path: Path) -> None:
    _, _, asked = _replayed(tmp_path / "tape", [Opaque()], all_have=True)

    assert asked == ["again"]


def test_what_one_rank_alone_has_and_cannot_be_recorded_ends_the_replay(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="Opaque"):
        _replayed(tmp_path / "tape", [Opaque()], all_have=False)
