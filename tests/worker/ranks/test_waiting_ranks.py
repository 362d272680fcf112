"""A rank that only serves others never comes to an update, and that is known soon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.storage.run.mailboxes import RankStatus
from supervisor.storage.steps.applied_rates import WINDOW_STEPS, OwnTimes, read_own_times
from supervisor.worker.ranks import waiting_ranks
from supervisor.worker.ranks import waiting_ranks as own_time
from supervisor.worker.ranks.exchanges import Counts
from supervisor.worker.ranks.waiting_ranks import STILL_FOR_S, Note, OwnTime, WaitingRanks


@dataclass
class Behind:
    """Stands for `Exchanges` of a rank that has made `calls` collectives."""

    calls: int = 0

    def so_far(self) -> Counts:
        return Counts({"all": self.calls})

    def is_behind(self, other: Counts) -> bool:
        return (other.calls["all"] or 0) > self.calls


@dataclass
class Clock:
    now_s: float = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Pair:
    """Rank 0, which waits for rank 1 at its update; `is_in_vain` is its answer."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.other = RankStatus(folder / "notes", 1, 2)
        self.waiting = WaitingRanks(RankStatus(folder / "notes", 0, 2), Behind())  # type: ignore[arg-type]
        self.waiting.start()

    def is_in_vain(self, *, calls: int, cpu_s: float, after_s: float = 0.0) -> bool:
        self.clock.now_s += after_s
        self.other.write(Note(cpu_s, Counts({"all": calls})).pack())
        return self.waiting.is_in_vain()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    clock = Clock()
    monkeypatch.setattr(waiting_ranks.time, "monotonic", clock.monotonic)
    return Pair(tmp_path, clock)


def test_a_rank_that_is_ahead_and_does_nothing_waits(pair: Pair) -> None:
    assert not pair.is_in_vain(calls=1, cpu_s=5.0)
    assert not pair.is_in_vain(calls=1, cpu_s=5.0, after_s=STILL_FOR_S / 2)
    assert pair.is_in_vain(calls=1, cpu_s=5.01, after_s=STILL_FOR_S)

    assert pair.waiting.found == 1


def test_a_rank_that_computes_is_only_slow(pair: Pair) -> None:
    pair.is_in_vain(calls=1, cpu_s=5.0)

    assert not any(
        pair.is_in_vain(calls=1, cpu_s=5.0 + 0.5 * number, after_s=1.0) for number in range(1, 20)
    )


def test_a_rank_that_goes_on_exchanging_is_only_slow(pair: Pair) -> None:
    pair.is_in_vain(calls=1, cpu_s=5.0)

    assert not any(pair.is_in_vain(calls=number, cpu_s=5.0, after_s=1.0) for number in range(2, 20))


def test_a_rank_that_is_not_ahead_waits_for_something_else(pair: Pair) -> None:
    assert not any(pair.is_in_vain(calls=0, cpu_s=5.0, after_s=1.0) for _ in range(20))


def test_what_was_seen_at_an_earlier_update_does_not_count(pair: Pair) -> None:
    pair.is_in_vain(calls=1, cpu_s=5.0)

    pair.waiting.start()

    assert not pair.is_in_vain(calls=1, cpu_s=5.0, after_s=2 * STILL_FOR_S)


def test_a_rank_tells_what_it_has_exchanged(tmp_path: Path) -> None:
    notes = RankStatus(tmp_path / "notes", 1, 2)
    WaitingRanks(notes, Behind(calls=7)).tell()  # type: ignore[arg-type]

    data = RankStatus(tmp_path / "notes", 0, 2).read(1)

    assert data is not None
    assert Note.unpack(data).counts.calls == {"all": 7}


def _steps(own: OwnTime, clock: list[float], steps: range, alone_s: float) -> None:
    for step in steps:
        clock[0] += alone_s
        own.backward_begins(step)
        clock[0] += 5.0  # waits for the others
        own.update_ended()


def test_time_in_backward_and_update_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(own_time, "running_s", lambda: clock[0])
    own = OwnTime(OwnTimes(tmp_path / "rank_0.steps"))

    _steps(own, clock, range(WINDOW_STEPS), 1.0)  # the first has no update before it: no window
    _steps(own, clock, range(WINDOW_STEPS, 2 * WINDOW_STEPS), 0.5)
    _steps(own, clock, range(2 * WINDOW_STEPS, 3 * WINDOW_STEPS + 1), 0.25)

    assert read_own_times(tmp_path / "rank_0.steps") == {
        WINDOW_STEPS: 0.5,
        2 * WINDOW_STEPS: 0.25,
    }
    assert (tmp_path / "rank_0.steps.own").stat().st_mode & 0o077 == 0
