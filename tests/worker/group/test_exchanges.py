"""One number a rank tells whether all of them stand at the same place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from supervisor.errors import CheckpointError
from supervisor.worker.group import exchanges
from supervisor.worker.group.exchanges import (
    EXCHANGED,
    Exchanges,
    check_same_place,
    is_same_place,
)

RANKS = 3


@dataclass(eq=False)
class Group:
    """One rank's part of a group of all ranks."""

    number: int
    calls: int = 0

    def rank(self) -> int:
        return self.number

    def _get_sequence_number_for_group(self) -> int:
        return self.calls


@dataclass(eq=False)
class Work:
    """Of a message from a rank that is known once it is here."""

    source: int
    is_here: bool = False

    def is_completed(self) -> bool:
        return self.is_here

    def _source_rank(self) -> int:
        return self.source


class Rank:
    def __init__(self, number: int) -> None:
        self.group = Group(number)
        self.exchanges = Exchanges()

    def balance(self) -> int:
        with self.known():
            return self.exchanges.balance()

    def begin(self) -> None:
        with self.known():
            self.exchanges.begin()

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """Within it torch knows the group."""
        with pytest.MonkeyPatch.context() as patched:
            found = (self.group, "all", self.group.number, RANKS)
            patched.setattr(exchanges, "_groups", lambda: iter([found]))
            patched.setattr(exchanges, "_own", lambda group: (group.number, "all"))
            yield

    def is_behind(self, other: Rank) -> bool:
        with other.known():
            counts = other.exchanges.so_far()
        with self.known():
            return self.exchanges.is_behind(counts)

    def send(self, to: int) -> None:
        with self.known():
            with self.exchanges.aside(self.group):
                self.group.calls += 1
            self.exchanges.sent(self.group, to)

    def receive(self, source: int) -> None:
        with self.known():
            with self.exchanges.aside(self.group):
                self.group.calls += 1
            self.exchanges.received(self.group, source)


@pytest.fixture
def ranks() -> list[Rank]:
    return [Rank(number) for number in range(RANKS)]


def at_one_place(ranks: list[Rank]) -> bool:
    return is_same_place(rank.balance() for rank in ranks)


def test_a_collective_that_one_rank_has_not_called_yet_is_seen(ranks: list[Rank]) -> None:
    assert at_one_place(ranks)
    for rank in ranks[:2]:
        rank.group.calls += 7
    assert not at_one_place(ranks)

    ranks[2].group.calls += 7

    assert at_one_place(ranks)


def test_a_message_that_was_not_received_yet_is_seen(ranks: list[Rank]) -> None:
    ranks[0].send(1)
    assert not at_one_place(ranks)
    ranks[2].receive(0)  # another one
    assert not at_one_place(ranks)
    ranks[1].receive(0)
    ranks[0].send(2)

    assert at_one_place(ranks)


def test_a_message_from_any_rank_counts_when_it_is_known_whose_it_was(ranks: list[Rank]) -> None:
    work = Work(source=2)
    ranks[2].send(0)
    ranks[0].exchanges.received_from_any(ranks[0].group, work)
    assert not at_one_place(ranks)

    work.is_here = True

    assert at_one_place(ranks)


def test_what_came_before_a_replay_has_arrived_does_not_count(ranks: list[Rank]) -> None:
    ranks[0].group.calls, ranks[1].group.calls = 4, 9
    ranks[1].send(2)

    for rank in ranks:
        rank.begin()

    assert at_one_place(ranks)


def test_who_has_begun_what_another_has_not_is_known(ranks: list[Rank]) -> None:
    ranks[0].group.calls += 1
    assert [rank.is_behind(ranks[0]) for rank in ranks] == [False, True, True]
    for rank in ranks[1:]:
        rank.group.calls += 1

    ranks[0].receive(1)
    ranks[2].send(1)

    assert [ranks[1].is_behind(other) for other in ranks] == [True, False, True]
    assert [ranks[0].is_behind(other) for other in ranks] == [False, False, False]
    ranks[1].send(0)
    ranks[1].receive(2)
    assert not any(ranks[1].is_behind(other) for other in ranks)


def test_states_of_other_places_are_no_checkpoint(ranks: list[Rank]) -> None:
    ranks[0].group.calls += 1
    metas = {rank.group.number: {EXCHANGED: rank.balance()} for rank in ranks}

    with pytest.raises(CheckpointError, match="the same place"):
        check_same_place(metas)

    check_same_place({0: {}, 1: {}})
