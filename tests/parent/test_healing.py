"""A killed rank comes back alone only where nothing speaks against it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.parent.attempt import Attempt
from supervisor.parent.healing import RankHealing
from supervisor.records import WorkerOrder
from supervisor.storage.run.healing_memory import HealingMemory
from supervisor.storage.run.rundir import RunDirectory

KILLED = -signal.SIGKILL


class FakeProcesses:
    ranks = (0, 1)

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.signals_sent: dict[int, list[int]] = {}
        self.started: list[tuple[int, Mapping[str, Any]]] = []
        self.standbys = 0

    def stand_by(self) -> None:
        self.standbys += 1

    def start_alone(self, rank: int, told: Mapping[str, Any]) -> None:
        self.started.append((rank, told))
        del self.codes[rank]


class FakeKept:
    def steps_of(self, rank: int) -> list[int | None]:
        return [16, 8]


class FakeAgent:
    kept = FakeKept()


class FakeMemory(HealingMemory):
    def log_step(self, rank: int, log: int) -> int:
        return [16, 8, 0][log]


class Watched:
    """An attempt of two ranks that keep their collectives."""

    def __init__(self, folder: Path) -> None:
        self.rundir = RunDirectory(folder)
        self.rundir.checkpoints.mkdir(parents=True)
        self.memory = FakeMemory(2)
        self.process = FakeProcesses()
        self.said: list[str] = []
        self.order = WorkerOrder(attempt=1)
        for rank in (0, 1):
            self.memory.mailbox.takes_part(rank)
        self.start()

    def start(self) -> None:
        agent: Any = FakeAgent()
        self.healing = RankHealing(
            self.rundir,
            agent,
            self.memory,
            self.order,
            self.said.append,
            self.said.append,
            stands_by=True,
        )

    def look(self, last_step: int = 20, *, may_go_on: bool = True) -> None:
        process: Any = self.process
        self.healing.look(process, [last_step, last_step], may_go_on=may_go_on)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.memory.close()


def test_a_killed_rank_alone_is_started_and_awaited(watched: Watched) -> None:
    watched.process.codes[1] = KILLED
    watched.look()
    was_waiting = watched.healing.is_waiting
    watched.memory.mailbox.caught_up(1, 12)
    watched.look()

    ((rank, told),) = watched.process.started
    assert (rank, told["step"], was_waiting) == (1, 16, True)
    assert not watched.healing.is_waiting
    assert watched.memory.mailbox.generation == watched.memory.mailbox.done == 1
    assert "12 answers" in watched.said[-1]


def test_a_process_waits_for_each_death(watched: Watched) -> None:
    for _ in range(2):
        watched.look()
    before = watched.process.standbys
    watched.process.codes[1] = KILLED
    watched.look()
    watched.memory.mailbox.caught_up(1, 12)
    for _ in range(2):
        watched.look()

    assert (before, watched.process.standbys) == (1, 2)


def test_nothing_is_said_while_ranks_end_by_themselves(watched: Watched) -> None:
    watched.process.codes[0] = 0
    watched.look()

    assert not watched.said


def by_us(watched: Watched) -> None:
    watched.process.signals_sent[1] = [signal.SIGKILL]


def another_ended(watched: Watched) -> None:
    watched.process.codes[0] = 0


def by_another_signal(watched: Watched) -> None:
    watched.process.codes[1] = -signal.SIGSEGV


def sends(watched: Watched) -> None:
    watched.memory.mailbox.object_to(0, "c10d.send is used, whose results are not kept")


def treated(watched: Watched) -> None:
    watched.order = WorkerOrder(attempt=2, lr_factor=0.5)
    watched.start()


def saves(watched: Watched) -> None:
    (watched.rundir.checkpoints / ".part-00000024-1-0").mkdir()


def has_saved(watched: Watched) -> None:
    (watched.rundir.checkpoints / "step_00000017").mkdir()


@pytest.mark.parametrize(
    "against", [by_us, another_ended, by_another_signal, sends, treated, saves, has_saved]
)
def test_all_ranks_start_again_where_something_speaks_against_it(
    watched: Watched, against: Any
) -> None:
    watched.process.codes[1] = KILLED
    against(watched)
    watched.look()

    assert not watched.process.started
    assert watched.process.codes[1]
    assert watched.memory.mailbox.declined
    assert watched.said[-1].endswith("all ranks start again")


def test_what_is_left_of_other_saves_speaks_against_nothing(watched: Watched) -> None:
    for name in (".part-00000024-0-0", ".part-00000024-1-0-off2"):
        (watched.rundir.checkpoints / name).mkdir()
    watched.process.codes[1] = KILLED
    watched.look()

    assert watched.process.started


def test_a_second_death_ends_it(watched: Watched) -> None:
    watched.process.codes[1] = KILLED
    watched.look()
    watched.process.codes[0] = KILLED
    watched.look()

    assert watched.memory.mailbox.declined
    assert not watched.healing.is_waiting


def test_a_rank_that_the_others_need_no_more_comes_to_its_end(watched: Watched) -> None:
    watched.process.codes[1] = KILLED
    watched.look()
    watched.process.codes[0] = 0
    for _ in range(2):
        watched.look()
    was_waiting = watched.healing.is_waiting
    watched.process.codes[1] = 0
    watched.look()

    assert was_waiting
    assert watched.memory.mailbox.declined
    assert "has come to its end" in watched.said[-1]


def test_a_rank_that_needs_others_that_have_ended_has_all_start_again(watched: Watched) -> None:
    watched.process.codes[1] = KILLED
    watched.look()
    watched.process.codes.update({0: 0, 1: 1})
    watched.look()

    assert "rank 1 has ended meanwhile" in watched.said[-1]


def test_a_rank_that_dies_without_a_step_of_its_own_is_not_started_again(watched: Watched) -> None:
    for _ in range(2):
        watched.process.codes[1] = KILLED
        watched.look(last_step=20)
        watched.memory.mailbox.caught_up(1, 1)
        watched.look()

    assert len(watched.process.started) == 1


def test_a_run_that_is_to_end_heals_nothing(watched: Watched) -> None:
    watched.process.codes[1] = KILLED
    watched.look(may_go_on=False)

    assert not watched.process.started


def test_a_script_error_is_no_death_to_heal(watched: Watched) -> None:
    watched.process.codes[1] = 1
    watched.look()

    assert not watched.process.started
    assert "not killed by somebody else's SIGKILL: all ranks start again" in watched.said[-1]


@pytest.mark.parametrize(
    ("members", "ranks", "made"), [(None, 2, 1), (object(), 2, 0), (None, 1, 0)]
)
def test_only_several_ranks_of_one_node_are_healed(
    tmp_path: Path, members: object, ranks: int, made: int
) -> None:
    """With several nodes, on one machine too, all start again."""
    kept: list[None] = []
    agent = SimpleNamespace(revive=lambda: None, keep_collectives=lambda: kept.append(None))
    restart = SimpleNamespace(heals=True, standby=False)
    spec = SimpleNamespace(settings=SimpleNamespace(restart=restart))
    attempt: Any = SimpleNamespace(
        _s=SimpleNamespace(members=members, local_ranks=ranks, spec=spec)
    )

    Attempt._begin_healing(attempt, agent)  # type: ignore[arg-type]

    assert len(kept) == made
