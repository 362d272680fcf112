"""Collectives are made, made again, kept and answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from supervisor.storage.run.healing_memory import HealingMailbox, HealingMemory
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.process_signs import ExitRequest
from supervisor.worker.healing import collectives as module
from supervisor.worker.healing.collectives import Collectives, Mode
from supervisor.worker.healing.collectives_log import CollectivesLog
from supervisor.worker.healing.operations import Operation

WORLD = "world"


class Group:
    group_name = WORLD

    def size(self) -> int:
        return 2


class FakeWork:
    """Of a call that ends, or breaks off, when somebody waits for it or `end` is called."""

    def __init__(self, call: FakeCall) -> None:
        self._call = call
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def wait(self) -> None:
        call = self._call
        call.tensor.add_(1000.0 if call.breaks else call.tensor.clone())
        if call.breaks:
            call.breaks -= 1
            raise RuntimeError("Connection closed by peer")

    def end(self) -> None:
        try:
            self.wait()
        except RuntimeError as error:
            self._future.set_exception(error)  # type: ignore[arg-type]
        else:
            self._future.set_result([])

    def get_future(self) -> Any:
        return self._future


class FakeCall:
    """Doubles the tensor that it is given; breaks off half-way as often as it is told."""

    is_in_place = True

    def __init__(
        self, value: float, *, name: str = "allreduce_", breaks: int = 0, waits: bool = True
    ) -> None:
        self.name, self.operation = name, Operation(name)
        self.group, self.boxed, self.is_plain = Group(), "its own", True
        self.tensor = torch.tensor([value])
        self.breaks = breaks
        self.is_waited_for = waits
        self.made_in: list[Any] = []
        self.works: list[FakeWork] = []

    @property
    def gives(self) -> list[torch.Tensor]:
        return [self.tensor]

    gets = gives

    def split(self) -> tuple[list[torch.Tensor], None]:
        return self.gets, None

    def signature(self, group: str) -> int:
        return 100 + len(self.name)

    def make(self, boxed: Any) -> FakeCall:
        self.made_in.append(boxed)
        self.works.append(FakeWork(self))
        return self

    def work_of(self, made: Any) -> FakeWork:
        return self.works[-1]

    def again(self, *, fills: bool) -> FakeCall:
        copy = FakeCall(0.0, name=self.name)
        copy.made_in = self.made_in
        return copy

    def ended(self, future: Any = None) -> Any:
        return self.gets if future is None else future


class FakeLinks:
    """Connections to another rank, which has `completed` so many collectives of the group."""

    is_told = False

    def __init__(self, *, completed: int = 0, comes_back: bool = True) -> None:
        self.completed, self.comes_back = completed, comes_back
        self.is_outdated = False
        self.closed = 0

    def of(self, group: Any, name: str) -> str:
        return "connected"

    def close(self) -> None:
        self.closed += 1

    def drop(self) -> None:
        pass

    def await_word(self) -> bool:
        self.is_outdated = self.comes_back
        return self.comes_back

    def wait_together(self, completed: dict[str, int]) -> dict[int, dict[str, int]]:
        self.is_outdated = False
        return {0: dict(completed), 1: {WORLD: self.completed}}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[HealingMemory]:
    monkeypatch.setattr(module, "is_gloo", lambda group: True)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1])
    made = HealingMemory(2)
    yield made
    made.close()


def collectives_in(memory: HealingMemory, links: FakeLinks, *, heals: bool = False) -> Collectives:
    places = memory.places
    logs = [CollectivesLog(path, 1 << 16) for path in places["logs"]["0"]]
    mailbox = HealingMailbox(places["board"])
    made = Collectives(mailbox, logs, 0, 2, CallState(), heals=heals, steps_done=lambda: 9)
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

    assert (result, links.closed) == (6.0, 2)
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
        handled(collectives, FakeCall(float(number)))
    memory.mailbox.completes(1, collectives._groups[WORLD].place, 2)

    handled(collectives, FakeCall(1.0))

    assert [kept.number for kept in collectives._kept] == [3, 4]


def test_the_script_goes_on_while_a_collective_is_under_way(memory: HealingMemory) -> None:
    collectives = collectives_in(memory, FakeLinks())
    collectives.state_kept(0, 8)
    first, second = FakeCall(1.0, waits=False), FakeCall(2.0, waits=False)

    answers = [collectives.handle(call) for call in (first, second)]  # type: ignore[arg-type]
    second.works[0].end()
    is_done, counts = answers[1].done(), dict(collectives.completed)
    first.works[0].end()

    assert (is_done, counts) == (True, {})  # what came before it is not in the log yet
    assert collectives.completed == {WORLD: 2}
    assert len(list(collectives._logs[0].entries())) == 2
    assert answers[0].wait() is not None


def test_what_broke_off_beside_the_script_is_made_again(memory: HealingMemory) -> None:
    links = FakeLinks()
    collectives = collectives_in(memory, links)
    calls = [FakeCall(1.0, waits=False, breaks=1), FakeCall(2.0, waits=False)]
    answers = [collectives.handle(call) for call in calls]  # type: ignore[arg-type]

    for call in calls:
        call.works[0].end()
    for answer in answers:
        answer.wait()

    assert [float(call.tensor) for call in calls] == [2.0, 4.0]
    assert collectives.completed == {WORLD: 2}


def test_no_state_is_followed_while_a_collective_is_under_way(memory: HealingMemory) -> None:
    collectives = collectives_in(memory, FakeLinks())
    collectives.state_kept(0, 8)
    collectives.handle(FakeCall(1.0, waits=False))  # type: ignore[arg-type]

    collectives.state_kept(1, 9)

    assert memory.log_step(0, 1) == -1


def recorded(memory: HealingMemory) -> None:
    """A rank that has kept its state of step 8, and made two collectives and an exchange since."""
    before = collectives_in(memory, FakeLinks())
    handled(before, FakeCall(1.0))
    before.state_kept(1, 8)
    handled(before, FakeCall(2.0))
    before.recorded_message(b"mine", lambda one, other: one == other)
    before.message_ended([b"mine", b"yours"])
    handled(before, FakeCall(3.0))


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


def test_an_operation_that_is_not_kept_is_objected_to(memory: HealingMemory) -> None:
    collectives = collectives_in(memory, FakeLinks())
    call = FakeCall(2.0, name="send")

    handled(collectives, call)

    assert call.made_in == [call.boxed]
    assert "c10d.send" in HealingMailbox(memory.places["board"]).objection_of(0)
    assert HealingMailbox(memory.places["board"]).objection_of(1) == "its collectives are not kept"


@pytest.mark.parametrize(("cost_s", "is_kept"), [(0.1, True), (0.3, False)])
def test_what_costs_too_much_of_the_time_is_given_up_aloud(
    memory: HealingMemory, cost_s: float, is_kept: bool
) -> None:
    told: list[str] = []
    collectives = collectives_in(memory, FakeLinks())
    collectives._most_cost, collectives._tell = 0.02, told.append
    for number in range(3):
        collectives.state_kept(number % 2, number)
    collectives.boundary(10, 0.0)
    collectives._cost_s = cost_s

    collectives.boundary(10 + module.MEASURED_STEPS, 10.0)

    assert bool(told) is not is_kept
    assert bool(HealingMailbox(memory.places["board"]).objection_of(0)) is not is_kept
    handled(collectives, FakeCall(1.0))
    assert bool(collectives._kept) is is_kept
