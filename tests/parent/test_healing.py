"""A killed rank comes back alone only where nothing speaks against it."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.parent.attempt import LAST_WORDS_S, Attempt
from supervisor.parent.healing import AGES, LEAST_LIMIT_S, RankHealing
from supervisor.parent.process.agent_process import RankProcesses
from supervisor.parent.watching.watchdog import Watchdog
from supervisor.records import WorkerOrder
from supervisor.settings import WatchdogSettings
from supervisor.storage.run.healing_memory import HealingMemory
from supervisor.storage.run.rundir import RunDirectory

KILLED = -signal.SIGKILL
MOST_S = 400.0


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
        self.now_s = 0.0
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
            most_s=MOST_S,
            stands_by=True,
            clock=lambda: self.now_s,
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


@pytest.mark.parametrize(("rank", "waits"), [(0, False), (1, True)])
def test_a_save_that_was_begun_before_the_death_is_heeded_when_it_is_seen(
    watched: Watched, rank: int, waits: bool
) -> None:
    """The others would wait for the part of the dead rank, which does not save that step again."""
    watched.process.codes[1] = KILLED
    watched.look()
    (watched.rundir.checkpoints / f".part-00000024-1-{rank}").mkdir()
    watched.look()

    assert watched.healing.is_waiting == waits


def test_a_second_death_ends_it(watched: Watched) -> None:
    watched.process.codes[1] = KILLED
    watched.look()
    watched.process.codes[0] = KILLED
    watched.look()

    assert watched.memory.mailbox.declined
    assert not watched.healing.is_waiting


@pytest.mark.parametrize(
    ("age_s", "limit_s"), [(0.0, LEAST_LIMIT_S), (30.0, LEAST_LIMIT_S + 30.0 * AGES), (1e4, MOST_S)]
)
def test_a_rank_that_is_not_back_in_time_is_awaited_no_more(
    watched: Watched, age_s: float, limit_s: float
) -> None:
    watched.now_s = age_s
    watched.process.codes[1] = KILLED
    watched.look()
    watched.now_s += limit_s - 1
    watched.look()
    was_waiting = watched.healing.is_waiting
    watched.now_s += 2
    watched.look()

    assert f"the others wait, {limit_s:.0f} s at most" in watched.said[0]
    assert was_waiting
    assert (watched.healing.is_given_up, watched.healing.overdue) == (True, 1)
    assert watched.memory.mailbox.declined
    assert f"is not back after {limit_s + 1:.0f} s: all ranks start again" in watched.said[-1]


EVENTS = ("killed", "ends", "fails", "catches up", "objects", "declines", "may not go on", "late")


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1)), max_size=8))
def test_whatever_happens_the_waiting_has_an_end(events: list[tuple[str, int]]) -> None:
    """After its limit nobody is awaited; who was, is back, or all ranks are told to end."""
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(Path(folder))
        mailbox, healing, codes = watched.memory.mailbox, watched.healing, watched.process.codes
        began_s, step = 0.0, 20
        for what, rank in [("killed", 1), *events, ("late", 0)]:
            was_waiting = healing.is_waiting
            if what in ("killed", "ends", "fails"):
                codes.setdefault(rank, {"killed": KILLED, "ends": 0, "fails": 1}[what])
            elif what == "catches up":
                mailbox.caught_up(rank, 3)
            elif what == "objects":
                mailbox.object_to(rank, "it uses send")
            elif what == "declines":
                mailbox.object_to(rank, "it is not what its rank was")
                mailbox.decline()
            elif what == "late":
                watched.now_s += MOST_S + 1
            step += 1
            watched.look(step, may_go_on=what != "may not go on")
            if healing.is_waiting and not was_waiting:
                began_s = watched.now_s
            assert not healing.is_waiting or watched.now_s - began_s <= MOST_S
            assert not healing.is_given_up or (mailbox.declined and not healing.is_waiting)

        is_back = mailbox.done == mailbox.generation
        assert is_back or healing.is_given_up or 0 in codes.values()
        watched.memory.close()


def test_who_is_not_awaited_because_of_an_error_of_ours_does_not_keep_the_others(
    watched: Watched,
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("no such file")

    watched.process.codes[1] = KILLED
    watched.look()
    watched.healing.look = fails  # type: ignore[method-assign,assignment]
    attempt: Any = attempt_of(watched)
    silence: Any = SimpleNamespace()

    with pytest.raises(OSError, match="no such file"):
        Attempt._heal(attempt, watched.process, silence, 0.0)

    assert watched.healing.is_given_up
    assert watched.memory.mailbox.declined


def attempt_of(watched: Watched) -> Any:
    """An attempt in which nothing else is watched."""
    watched.process.__class__ = type("Processes", (FakeProcesses, RankProcesses), {"codes": {}})
    watches = [SimpleNamespace(rank=n, feed=SimpleNamespace(last_step=20)) for n in range(2)]
    return SimpleNamespace(
        _healing=watched.healing,
        _s=SimpleNamespace(inbox=SimpleNamespace(asked_by=None), agent=None),
        _signals=SimpleNamespace(kill_at_s=None),
        _watches=watches,
        _broken_since_s=None,
        _guards=lambda what, work: None,
        _endings=SimpleNamespace(are_completed=lambda rank: True),
    )


def test_all_are_ended_soon_where_one_is_awaited_no_more(watched: Watched) -> None:
    watched.process.codes[1] = KILLED
    watched.look()
    watched.now_s += MOST_S + 1
    attempt = attempt_of(watched)
    sent: list[int] = []
    watched.process.send = sent.append  # type: ignore[attr-defined]
    watchdog = Watchdog(WatchdogSettings(), started_s=0.0)
    found: list[int] = []
    silence: Any = SimpleNamespace(watchdog=watchdog, not_back=found.append)

    Attempt._heal(attempt, watched.process, silence, watched.now_s)
    for passed_s in (0.0, LAST_WORDS_S):
        Attempt._end_the_others(attempt, watched.process, silence, watched.now_s + passed_s)

    assert found == [1]
    assert sent == [signal.SIGKILL]


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
    """With several nodes, on one machine too, all start again; told once."""
    kept: list[None] = []
    told: list[str] = []
    agent = SimpleNamespace(revive=lambda: None, keep_collectives=lambda: kept.append(None))
    restart = SimpleNamespace(heals=True, standby=False)
    settings = SimpleNamespace(restart=restart, watchdog=WatchdogSettings())
    spec = SimpleNamespace(settings=settings)
    run_log = SimpleNamespace(tell_once=told.append)
    attempt: Any = SimpleNamespace(
        _s=SimpleNamespace(members=members, local_ranks=ranks, spec=spec, run_log=run_log)
    )

    Attempt._begin_healing(attempt, agent)  # type: ignore[arg-type]

    assert len(kept) == made
    assert len(told) == (members is not None)
