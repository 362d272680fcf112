"""One number a rank tells whether all of them stand at the same place."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from supervisor.errors import CheckpointError
from supervisor.worker.ranks import exchanges
from supervisor.worker.ranks.exchanges import (
    BEGAN,
    EXCHANGED,
    CommonBeginning,
    Counts,
    Exchanges,
    FirstAverages,
    check_same_place,
    common_beginning,
    is_same_place,
    pair,
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

    def start(self) -> None:
        with self.known():
            self.exchanges.start()

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
        rank.start()

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


ALL = [0, 1, 2]


def test_a_collective_is_common_where_all_its_ranks_call_it_before_they_train() -> None:
    beginning = CommonBeginning(
        {0: Counts({"all": 3}), 1: Counts({"all": 5, "part": 2}), 2: Counts({"all": 4, "part": 4})}
    )

    assert [beginning.has_call("all", ALL, number) for number in range(5)] == [
        *(True, True, True),
        *(False, False),
    ]
    assert beginning.has_call("part", [1, 2], 1)
    assert not beginning.has_call("part", [1, 2], 2)
    assert not beginning.has_call("later", [1, 2], 0)


def test_a_group_that_does_not_count_is_left_alone() -> None:
    beginning = CommonBeginning({0: Counts({"all": None}), 1: Counts({"all": 1})})

    assert beginning.has_call("all", [0, 1], 7)


def test_a_message_is_common_where_it_is_sent_and_received_before_both_train() -> None:
    there, back = pair("all", 0, 1), pair("all", 1, 0)
    beginning = CommonBeginning(
        {
            0: Counts(sent={there: 1}, received={back: 2}),
            1: Counts(sent={back: 3}, received={there: 4}),
            2: Counts(sent={pair("all", 2, 0): 5}),
        }
    )

    assert beginning.has_message("all", ALL, (0, 1), 0)
    assert not beginning.has_message("all", ALL, (0, 1), 1)
    assert beginning.has_message("all", ALL, (1, 0), 1)
    assert not beginning.has_message("all", ALL, (1, 0), 2)
    assert beginning.has_message_from_any("all", ALL, 0, 1)
    assert not beginning.has_message_from_any("all", ALL, 0, 2)


def test_messages_of_a_group_are_of_its_own_numbers() -> None:
    first = pair("part", 0, 1)
    beginning = CommonBeginning(
        {0: Counts(), 1: Counts(sent={first: 1}), 2: Counts(received={first: 1})}
    )

    assert beginning.has_message("part", [1, 2], (0, 1), 0)
    assert not beginning.has_message("part", [0, 2], (0, 1), 0)


def test_all_begin_at_one_place_where_nothing_is_exchanged_by_half() -> None:
    first = pair("all", 0, 1)
    whole = {
        0: Counts({"all": 3, "part": 1}, sent={first: 1}),
        1: Counts({"all": 3}, received={first: 1}),
    }

    assert CommonBeginning(whole).is_one_place
    assert not CommonBeginning({**whole, 1: Counts({"all": 3})}).is_one_place
    assert not CommonBeginning({**whole, 2: Counts({"part": 0})}).is_one_place


@pytest.mark.parametrize("knows", [True, False])
def test_a_checkpoint_has_it_of_all_ranks_or_not_at_all(knows: bool) -> None:
    counts = json.loads(json.dumps(Counts({"all": 2}).as_meta()))
    metas = {0: {BEGAN: counts}, 1: {BEGAN: counts if knows else None}}

    found = common_beginning(metas)

    assert (found is not None) == knows
    assert found is None or found.has_call("all", [0, 1], 1)


class Wrapper(nn.Module):
    """What is known of torch's."""

    def __init__(self, size: int = 1, *, unused: bool = False) -> None:
        super().__init__()
        self._lazy_init_ran = self._has_rebuilt_buckets = False
        self.find_unused_parameters, self.static_graph = unused, False
        self.process_group = SimpleNamespace(size=lambda: size)


@pytest.fixture
def averages(monkeypatch: pytest.MonkeyPatch) -> FirstAverages:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    return FirstAverages()


def test_a_wrapper_begins_and_then_arranges_its_buckets(averages: FirstAverages) -> None:
    wrapper = Wrapper()
    averages.made(wrapper)

    found = [averages.has_begun()]
    wrapper._lazy_init_ran = True
    found += [averages.has_begun(), averages.has_begun()]
    wrapper._has_rebuilt_buckets = True
    found += [averages.has_begun(), averages.has_begun()]

    assert found == [False, True, False, True, False]


def test_one_that_looks_for_unused_parameters_only_begins(averages: FirstAverages) -> None:
    wrapper = Wrapper(unused=True)
    averages.made(wrapper)
    wrapper._lazy_init_ran = True

    assert averages.has_begun()
    wrapper._has_rebuilt_buckets = True
    assert not averages.has_begun()


def test_one_of_some_ranks_alone_does_not_count_and_none_is_kept(averages: FirstAverages) -> None:
    alone, wrapper = Wrapper(size=2), Wrapper()
    gone = weakref.ref(wrapper)
    for one in (alone, wrapper):
        averages.made(one)
    alone._lazy_init_ran = True

    assert not averages.has_begun()
    del wrapper, one
    assert gone() is None
