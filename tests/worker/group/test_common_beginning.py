"""What ranks exchange before all of them train."""

from __future__ import annotations

import json

import pytest

from supervisor.worker.group.common_beginning import (
    BEGAN,
    CommonBeginning,
    Counts,
    common_beginning,
    pair,
)

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
