"""Several ranks judge one record, and what one of them wishes happens on all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from supervisor.errors import ReplayError
from supervisor.held_memory import HeldMemory
from supervisor.records import StepRecord
from supervisor.settings import SnapshotSettings
from supervisor.storage.run.mailboxes import RankStatus, StepMailbox
from supervisor.worker.core.boundaries import BoundarySchedule, GroupTurns, TimedPart
from supervisor.worker.core.progress import Progress
from supervisor.worker.core.step_probe import StepProbe
from supervisor.worker.ranks.agreement import (
    LOOKS_EACH_UNTIL,
    LOOKS_EVERY,
    GroupAgreement,
    GroupSchedule,
    StepMessage,
)
from supervisor.worker.ranks.exchanges import Exchanges
from supervisor.worker.ranks.waiting_ranks import WaitingRanks


class Saver(TimedPart):
    name = "saver"
    due = False

    def is_due(self, step: int) -> bool:
        return self.due

    def at_boundary(self, step: int) -> None:
        """Does nothing."""


class Rank:
    """One rank's part; `lost` and `split` tell what it was told."""

    def __init__(self, folder: Path, rank: int, ranks: int = 2) -> None:
        self.schedule, self.turns = GroupSchedule(), GroupTurns(BoundarySchedule())
        self.progress = Progress(probe=StepProbe())
        self.exchanges = Exchanges()
        self.saver, self.other = Saver(self.turns), Saver(self.turns)
        self.lost: list[bool] = []
        self.split: list[int] = []
        self.memory = HeldMemory(SnapshotSettings())
        self.agreement = GroupAgreement(
            StepMailbox(folder / "board", rank, ranks, timeout_s=10.0),
            self.schedule,
            self.turns,
            self.progress,
            WaitingRanks(RankStatus(folder / "notes", rank, ranks), self.exchanges),
            self.memory,
            on_lost=lambda: self.lost.append(True),
            on_split=self.split.append,
        )


@pytest.fixture
def ranks(tmp_path: Path) -> list[Rank]:
    return [Rank(tmp_path, rank) for rank in range(2)]


def agreed(ranks: list[Rank], records: list[StepRecord]) -> list[StepRecord | None]:
    found: list[StepRecord | None] = [None] * len(ranks)

    def one(index: int) -> None:
        found[index] = ranks[index].agreement.group_record(records[index])

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def step(number: int, *losses: float) -> list[StepRecord]:
    return [StepRecord(step=number, loss=loss, loss_seen=True) for loss in losses]


def test_all_ranks_judge_the_same_record(ranks: list[Rank]) -> None:
    first, second = agreed(ranks, step(0, 1.0, 3.0))

    assert first is not None
    assert second is not None
    assert first.loss == second.loss == 2.0


def test_the_clock_of_the_first_rank_decides_for_all(ranks: list[Rank]) -> None:
    ranks[1].saver.due = True
    ranks[1].schedule.plan(0.0, 0.0)
    for rank in ranks:
        rank.schedule.plan(0.0, 0.0)
    agreed(ranks, step(0, 1.0, 1.0))
    assert [rank.saver.has_turn(1) for rank in ranks] == [False, False]

    ranks[0].other.due = True
    for rank in ranks:
        rank.schedule.plan(0.0, 0.0)
    agreed(ranks, step(1, 1.0, 1.0))

    assert [rank.other.has_turn(2) for rank in ranks] == [True, True]
    assert [rank.saver.has_turn(2) for rank in ranks] == [False, False]
    assert [rank.schedule.step for rank in ranks] == [0.0, 0.0]  # the next boundary


def test_one_that_takes_a_dead_ranks_place_agrees_to_what_that_one_told(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own clock is another: it would save alone, and wait for the parts of the others."""
    first = ranks[0]
    first.saver.due = True
    first.schedule.plan(0.0, 0.0)
    told = [StepMessage(record=record).pack(10_000) for record in step(0, 1.0, 3.0)]
    mailbox = first.agreement._mailbox
    monkeypatch.setattr(mailbox, "exchange", lambda message, is_in_vain: told)

    first.agreement.group_record(step(0, 1.0)[0])

    assert not first.saver.has_turn(1)


def test_a_signal_on_one_rank_ends_all_at_the_same_boundary(ranks: list[Rank]) -> None:
    ranks[1].schedule.ask_to_leave("interrupted", "SIGTERM")
    assert ranks[1].schedule.leave is None

    agreed(ranks, step(0, 1.0, 1.0))

    assert [rank.schedule.leave for rank in ranks] == [("interrupted", "SIGTERM")] * 2


def test_ranks_that_decide_differently_are_told_with_the_next_step(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.agreement.decided("skip_update", 0)
    agreed(ranks, step(1, 1.0, 1.0))
    assert [rank.split for rank in ranks] == [[], []]

    ranks[0].agreement.decided("rollback", 40)
    ranks[1].agreement.decided("rollback", 30)
    agreed(ranks, step(2, 1.0, 1.0))

    assert [rank.split for rank in ranks] == [[2], [2]]


def test_all_ranks_hold_as_many_snapshots_as_the_one_with_the_least_room(
    ranks: list[Rank],
) -> None:
    ranks[0].memory.offered, ranks[1].memory.offered = 3, 1

    agreed(ranks, step(0, 1.0, 1.0))

    assert [rank.memory.agreed for rank in ranks] == [1, 1]


def test_ranks_of_different_steps_agree_no_more(ranks: list[Rank]) -> None:
    records = [StepRecord(step=4), StepRecord(step=5)]

    assert agreed(ranks, records) == [None, None]
    assert [rank.lost for rank in ranks] == [[True], [True]]
    assert ranks[0].agreement.group_record(StepRecord(step=5)) is None


def arrivals(
    ranks: list[Rank], steps: list[int], reasons: list[list[str]], done: list[int] | None = None
) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in ranks]

    def one(index: int) -> None:
        try:
            found[index] = ranks[index].agreement.arrived(
                steps[index], reasons[index], done=(done or steps)[index]
            )
        except ReplayError as error:
            found[index] = [str(error)]

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_ranks_are_exact_or_none(ranks: list[Rank]) -> None:
    assert arrivals(ranks, [8, 8], [[], []]) == [[], []]
    assert arrivals(ranks, [8, 8], [[], ["a value differs"]]) == [
        ["rank 1: a value differs"],
        ["a value differs"],
    ]
    assert agreed(ranks, step(8, 1.0, 3.0))[0] is not None


def test_ranks_that_arrive_elsewhere_do_not_go_on(ranks: list[Rank]) -> None:
    """Each would train alone, from another step; the attempt has trained nothing yet."""
    why = ["the other ranks have not arrived at this step"]

    assert arrivals(ranks, [8, 16], [[], []]) == [why, why]


def test_nobody_goes_on_without_a_rank_that_has_gone_before_it_arrived(ranks: list[Rank]) -> None:
    ranks[1].agreement.stop()

    with pytest.raises(ReplayError, match="have not arrived"):
        ranks[0].agreement.arrived(8, [], done=8)


def test_ranks_whose_loops_stand_elsewhere_do_not_go_on(ranks: list[Rank]) -> None:
    """One of them would come to its end before the other."""
    why = ["the ranks do not stand at the same step of their loops (a value differs)"]

    assert arrivals(ranks, [8, 8], [[], ["a value differs"]], done=[8, 3]) == [why, why]


def test_a_message_comes_back_as_it_was_packed() -> None:
    record = StepRecord(
        step=7,
        loss=0.5,
        grad_norm=2.0,
        lr=0.1,
        loss_scale=4.0,
        step_time_s=0.2,
        batch_size=8,
        memory_gib=1.5,
        clips_at=1.0,
        loss_seen=True,
        scaler_skipped=True,
        in_environment=True,
        observed={"entropy": 0.25},
    )
    message = StepMessage(record=record, due=5, leaves=True, step_is_begun=True, decided=2**64 - 1)

    assert StepMessage.unpack(message.pack(8000)) == message
    assert not StepMessage.unpack(message.pack(100)).record.observed
    with pytest.raises(ValueError, match="no message"):
        StepMessage.unpack(b"short")


def test_a_graph_begun_on_one_rank_moves_the_boundaries_of_all(ranks: list[Rank]) -> None:
    ranks[1].progress.step_is_begun = True

    agreed(ranks, [StepRecord(step=0), StepRecord(step=0)])

    assert [rank.progress.at_update for rank in ranks] == [True, True]
    assert not ranks[1].progress.step_is_begun


def test_where_ranks_stand_at_other_places_their_boundaries_are_at_updates(
    ranks: list[Rank],
) -> None:
    ranks[0].exchanges.at_forward, ranks[1].exchanges.at_forward = 5, 2**53 - 5
    agreed(ranks, step(0, 1.0, 1.0))

    assert not any(rank.progress.at_update for rank in ranks)
    ranks[1].exchanges.at_forward = 7

    agreed(ranks, step(1, 1.0, 1.0))

    assert all(rank.progress.at_update for rank in ranks)


def test_all_ranks_are_asked_at_the_same_boundaries_where_they_stand(ranks: list[Rank]) -> None:
    def asked(number: int) -> list[bool]:
        for rank in ranks:
            rank.schedule.plan(1e9, 1e9)
        ranks[0].schedule.plan(number + 1.0 if ranks[0].saver.due else 1e9, 1e9)
        agreed(ranks, step(number, 1.0, 1.0))
        return [rank.exchanges.are_asked for rank in ranks]

    first, later = LOOKS_EACH_UNTIL - 2, LOOKS_EACH_UNTIL + 2 * LOOKS_EVERY - 1
    assert [asked(n) for n in (first, first + 2, later, later + 1)] == [
        [True, True],
        [False, False],
        [True, True],
        [False, False],
    ]
    ranks[0].saver.due = True

    assert asked(later + 2) == [True, True]
