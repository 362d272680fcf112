"""Collectives are made, made again, kept and answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from supervisor.storage.run.healing_memory import HealingMailbox, HealingMemory
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.process_signs import ExitRequest
from supervisor.worker.healing import collectives as module
from supervisor.worker.healing.collectives import Collectives, Mode
from supervisor.worker.healing.collectives_log import CollectivesLog
from supervisor.worker.healing.operations import KEPT, Call

WORLD = "world"


class Group:
    group_name = WORLD

    own_collectives = 0

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return 2

    def _get_sequence_number_for_group(self) -> int:
        return self.own_collectives


class FakeCall:
    """Doubles the tensor that it is given; breaks off half-way as often as it is told."""

    def __init__(
        self, value: float, *, name: str = "allreduce_", breaks: int = 0, rank: int = 0
    ) -> None:
        self.name, self.operation = name, KEPT.get(name)
        self.group, self.is_plain, self.is_in_place = Group(rank), True, True
        self.tensor = torch.tensor([value])
        self.breaks = breaks
        self.made_in: list[Any] = []

    @property
    def gives(self) -> list[torch.Tensor]:
        return [self.tensor]

    gets = gives

    share = Call.share

    def signature(self, group: str) -> int:
        return 100 + len(self.name)

    def make(self, group: Any) -> None:
        self.made_in.append(group)
        self.tensor.add_(1000.0 if self.breaks else self.tensor.clone())
        if self.breaks:
            self.breaks -= 1
            raise RuntimeError("Connection closed by peer")

    def again(self, gave: Sequence[torch.Tensor]) -> FakeCall:
        copy = FakeCall(float(gave[0]), name=self.name)
        copy.made_in = self.made_in
        return copy

    def ended(self) -> list[torch.Tensor]:
        return self.gets


class FakeGather(FakeCall):
    """Gathers 1 of the first rank and 2 of the second."""

    def __init__(self, *, rank: int) -> None:
        super().__init__(rank + 1.0, name="_allgather_base_", rank=rank)
        self.is_in_place, self.got = False, torch.zeros(2)

    @property
    def gets(self) -> list[torch.Tensor]:
        return [self.got]

    def make(self, group: Any) -> None:
        self.made_in.append(group)
        self.got.copy_(torch.tensor([1.0, 2.0]))


class FakeLinks:
    """Connections to another rank, which has `completed` so many collectives of the group."""

    def __init__(self, *, completed: int = 0, comes_back: bool = True) -> None:
        self.completed, self.comes_back = completed, comes_back
        self.is_outdated = False
        self.drops = 0

    def of(self, group: Any, name: str) -> str:
        return "connected"

    def drop(self) -> None:
        self.drops += 1

    def await_word(self) -> bool:
        self.is_outdated = self.comes_back
        return self.comes_back

    def wait_together(self, completed: dict[str, int]) -> dict[int, dict[str, int]]:
        self.is_outdated = False
        return {0: dict(completed), 1: {WORLD: self.completed}}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[HealingMemory]:
    monkeypatch.setattr(module, "_is_gloo", lambda group: True)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1])
    made = HealingMemory(2)
    yield made
    made.close()


def collectives_in(
    memory: HealingMemory, links: FakeLinks, *, heals: bool = False, rank: int = 0
) -> Collectives:
    def logs_of(rank: int) -> list[CollectivesLog]:
        return [CollectivesLog(path, 1 << 16) for path in memory.places["logs"][str(rank)]]

    mailbox = HealingMailbox(memory.places["board"])
    made = Collectives(mailbox, logs_of, rank, 2, CallState(), heals=heals, steps_done=lambda: 9)
    made._links = links  # type: ignore[assignment]
    made.start()
    return made


def handled(collectives: Collectives, call: FakeCall) -> float:
    collectives.handle(call)  # type: ignore[arg-type]
    return float(call.tensor)


def test_what_broke_off_is_made_again_of_what_this_rank_gave(memory: HealingMemory) -> None:
    links = FakeLinks(completed=0)
    collectives = collectives_in(memory, links)

    result = handled(collectives, FakeCall(3.0, breaks=2))

    assert (result, links.drops) == (6.0, 2)
    assert collectives.completed == {WORLD: 1}


def test_an_error_behind_which_no_rank_comes_back_is_the_scripts(memory: HealingMemory) -> None:
    collectives = collectives_in(memory, FakeLinks(comes_back=False))

    with pytest.raises(RuntimeError, match="closed by peer"):
        handled(collectives, FakeCall(3.0, breaks=1))


def test_a_rank_that_is_ahead_makes_earlier_ones_again(memory: HealingMemory) -> None:
    links = FakeLinks(completed=1)
    collectives = collectives_in(memory, links)
    earlier = [FakeCall(float(n), name="broadcast_") for n in range(3)]
    for call in earlier:
        handled(collectives, call)

    handled(collectives, FakeCall(9.0, breaks=1))

    assert [len(call.made_in) for call in earlier] == [1, 2, 2]
    assert [float(call.tensor) for call in earlier] == [0.0, 2.0, 4.0]


def test_what_all_ranks_have_passed_is_not_kept(memory: HealingMemory) -> None:
    collectives = collectives_in(memory, FakeLinks())
    for number in range(3):
        handled(collectives, FakeCall(float(number), name="broadcast_"))

    handled(collectives, FakeCall(1.0))

    assert [kept.number for kept in collectives._kept[WORLD]] == [4]


def recorded(memory: HealingMemory, *, others: int = 2) -> None:
    """A rank that has kept its state of step 8, and made two collectives and an exchange since;
    `others`: how many of these the other one has completed."""
    before = collectives_in(memory, FakeLinks())
    handled(before, FakeCall(1.0))
    before.state_kept(1, 8, 1 << 20)
    handled(before, FakeCall(2.0))
    before.recorded_message(b"mine", lambda one, other: one == other)
    before.message_ended([b"mine", b"yours"])
    handled(before, FakeCall(3.0))
    other = collectives_in(memory, FakeLinks(), rank=1)
    handled(other, FakeCall(1.0, rank=1))
    other.state_kept(0, 8, 1 << 20)
    for value in (2.0, 3.0)[:others]:
        handled(other, FakeCall(value, rank=1))


def test_a_rank_that_comes_back_is_answered_and_then_takes_part(memory: HealingMemory) -> None:
    recorded(memory)
    collectives = collectives_in(memory, FakeLinks(), heals=True)
    collectives.catch_up(8, {WORLD: 1})
    calls = [FakeCall(2.0), FakeCall(3.0), FakeCall(4.0)]

    results = [handled(collectives, calls[0])]
    repeats = collectives.repeats
    told = collectives.recorded_message(b"mine", lambda one, other: one == other)
    results += [handled(collectives, call) for call in calls[1:]]

    assert results == [4.0, 6.0, 8.0]
    assert told == (b"mine", [b"mine", b"yours"])
    assert [len(call.made_in) for call in calls] == [0, 0, 1]
    assert (repeats, collectives.repeats, collectives.mode) == (True, False, Mode.MADE)
    assert collectives.called == collectives.completed == {WORLD: 4}


def test_of_what_is_gathered_each_rank_keeps_what_it_gave(memory: HealingMemory) -> None:
    for rank in (0, 1):
        before = collectives_in(memory, FakeLinks(), rank=rank)
        before.state_kept(1, 8, 1 << 20)
        before.handle(FakeGather(rank=rank))  # type: ignore[arg-type]
    collectives = collectives_in(memory, FakeLinks(), heals=True)
    collectives.catch_up(8, {})
    call = FakeGather(rank=0)

    collectives.handle(call)  # type: ignore[arg-type]

    assert (call.got.tolist(), call.made_in) == ([1.0, 2.0], [])
    (entry,) = CollectivesLog(memory.places["logs"]["1"][1]).entries()
    assert entry.length == call.tensor.nbytes


def test_what_another_rank_has_not_completed_is_made_by_all(memory: HealingMemory) -> None:
    recorded(memory, others=1)
    collectives = collectives_in(memory, FakeLinks(), heals=True)
    collectives.catch_up(8, {WORLD: 1})
    handled(collectives, FakeCall(2.0))
    collectives.recorded_message(b"mine", lambda one, other: one == other)
    call = FakeCall(3.0)

    result = handled(collectives, call)

    assert (result, len(call.made_in), collectives.answers) == (6.0, 1, 3)
    section = CollectivesLog(memory.places["logs"]["0"][1])
    assert len(list(section.entries())) == 4  # it is there once


def test_a_part_that_another_rank_has_not_kept_ends_all(memory: HealingMemory) -> None:
    recorded(memory, others=0)
    collectives = collectives_in(memory, FakeLinks(), heals=True)
    collectives.catch_up(8, {WORLD: 1})

    with pytest.raises(ExitRequest) as ended:
        handled(collectives, FakeCall(2.0))

    assert "has not kept its part" in ended.value.reason


def test_values_that_are_gone_are_not_made_again(memory: HealingMemory) -> None:
    collectives = collectives_in(memory, FakeLinks(completed=0))
    given = FakeCall(1.0, name="broadcast_")
    given.is_in_place = False  # so its values are not copied
    handled(collectives, given)

    with pytest.raises(ExitRequest) as ended:
        handled(collectives, FakeCall(9.0, breaks=1))

    assert "whose values are gone" in ended.value.reason


def test_another_value_than_the_recorded_one_ends_all(memory: HealingMemory) -> None:
    recorded(memory)
    collectives = collectives_in(memory, FakeLinks(), heals=True)
    collectives.catch_up(8, {WORLD: 1})

    with pytest.raises(ExitRequest) as ended:
        handled(collectives, FakeCall(2.5))

    assert "not what its rank gave" in ended.value.reason

    mailbox = HealingMailbox(memory.places["board"])
    assert mailbox.declined
    assert "not what its rank gave" in mailbox.objection_of(0)


def test_another_step_than_the_recorded_one_ends_all(memory: HealingMemory) -> None:
    recorded(memory)
    collectives = collectives_in(memory, FakeLinks(), heals=True)
    collectives.catch_up(8, {WORLD: 1})
    handled(collectives, FakeCall(2.0))

    with pytest.raises(ExitRequest) as ended:
        collectives.recorded_message(b"another", lambda one, other: one == other)

    assert "not what its rank had recorded" in ended.value.reason


def test_nothing_is_answered_without_a_log_behind_the_state(memory: HealingMemory) -> None:
    recorded(memory)
    collectives = collectives_in(memory, FakeLinks(), heals=True)

    with pytest.raises(ExitRequest) as ended:
        collectives.catch_up(7, {WORLD: 1})

    assert "nothing was kept after step 7" in ended.value.reason


def test_what_a_group_of_the_script_has_exchanged_itself_is_objected_to(
    memory: HealingMemory,
) -> None:
    collectives = collectives_in(memory, FakeLinks())
    handled(collectives, FakeCall(2.0))
    before = HealingMailbox(memory.places["board"]).objection_of(0)
    call = FakeCall(2.0)
    call.group.own_collectives = 1

    handled(collectives, call)

    assert not before
    assert "inference_mode" in HealingMailbox(memory.places["board"]).objection_of(0)


def test_an_operation_that_is_not_kept_is_objected_to(memory: HealingMemory) -> None:
    collectives = collectives_in(memory, FakeLinks())
    call = FakeCall(2.0, name="send")

    handled(collectives, call)

    assert call.made_in == [call.group]
    assert "c10d.send" in HealingMailbox(memory.places["board"]).objection_of(0)
    assert HealingMailbox(memory.places["board"]).objection_of(1) == "its collectives are not kept"
