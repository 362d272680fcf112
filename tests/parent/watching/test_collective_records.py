"""Torch's records of collectives tell which rank the others wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.parent.watching.collective_records import (
    RankCollectives,
    find_awaited_rank,
    read_records,
)


def entry(number: int, name: str = "all_reduce", *sizes: int, **others: Any) -> dict[str, Any]:
    """A call of torch's version 2.10 of its JSON document, without what is not read."""
    return {
        "collective_seq_id": number,
        "input_sizes": [list(sizes)] if sizes else [],
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"nccl:{name}",
        "retired": True,
        **others,
    }


def waits(number: int, name: str = "all_reduce", *sizes: int, **others: Any) -> dict[str, Any]:
    return entry(number, name, *sizes, retired=False, **others)


IN_SUBGROUP = {"process_group": ["7", "undefined"]}
CASES: dict[str, tuple[list[list[dict[str, Any]]], int | None, str]] = {
    "one has not come": (
        [[entry(1), waits(2, "all_gather", 4)], [entry(1)]],
        1,
        "rank 0 waits in all_gather of [4], number 2 of group default_pg, "
        "which rank 1 has not called",
    ),
    "one that waits elsewhere is not the first": (
        [
            [entry(1), waits(2)],
            [entry(1), entry(1, **IN_SUBGROUP), waits(2, **IN_SUBGROUP)],
            [entry(1), entry(1, **IN_SUBGROUP)],
        ],
        2,
        "rank 0 waits in all_reduce",
    ),
    "a subgroup has counted further": (
        [[entry(1), waits(9, **IN_SUBGROUP)], [entry(1), entry(8, **IN_SUBGROUP)]],
        1,
        "number 9 of group 7",
    ),
    "another call": (
        [[waits(5, "all_reduce", 3)], [waits(5, "barrier")], [waits(5, "all_reduce", 3)]],
        1,
        "do not match: rank 0 is in all_reduce of [3], rank 1 in barrier, both as number 5",
    ),
    "another size": (
        [[waits(5, "all_reduce", 3)], [waits(5, "all_reduce", 4)]],
        1,
        "rank 0 is in all_reduce of [3], rank 1 in all_reduce of [4]",
    ),
    "a gather of other sizes is allowed": (
        [[waits(5, "all_gather", 3)], [waits(5, "all_gather", 4)]],
        None,
        "",
    ),
    "one that torch has left open lies behind": (
        [[waits(3), entry(4), waits(5)], [waits(3), entry(4)]],
        1,
        "number 5",
    ),
    "messages are not counted": ([[entry(1), waits(9, is_p2p=True)], [entry(1)]], None, ""),
    "all alike": ([[waits(5)], [waits(5)]], None, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rank_that_others_wait_for_is_found(tmp_path: Path, name: str) -> None:
    ranks, expected, why = CASES[name]

    found = find_awaited_rank({rank: written(tmp_path, *e) for rank, e in enumerate(ranks)})

    assert (found and found[0]) == expected
    assert why in (found[1] if found else "")


ENDLESS = json.dumps([{"entries": [entry(1)]}]).replace(
    '"collective_seq_id": 1', '"collective_seq_id": 1e999'
)
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", ["", "[", "{}", "[[]]", "[1]", '[{"entries": [{}]}]', "[]", ENDLESS, DEEP]
)
def test_what_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "collectives_0.json"
    assert read_records(path) is None
    path.write_text(text)
    assert read_records(path) is None


def written(folder: Path, *entries: dict[str, Any]) -> RankCollectives:
    path = folder / "collectives_0.json"
    path.write_text(json.dumps([{"version": "2.10", "entries": []}, {"entries": entries}]))
    found = read_records(path)
    assert found is not None
    return found
