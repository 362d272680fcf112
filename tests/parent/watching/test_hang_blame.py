"""Which rank of a hung group the others wait for."""

from __future__ import annotations

import pytest

from supervisor.parent.watching.collective_records import (
    SilentRank,
    find_hanging_rank,
)

WAITS = ("all_reduce (/site/torch/distributed/distributed_c10d.py:3252)",)
READS = ("read (/home/me/data.py:7)",)
CASES: dict[str, tuple[list[SilentRank], int, str]] = {
    "fewer collectives": (
        [SilentRank(rank=0, collectives=6, last_step=9), SilentRank(rank=1, collectives=5)],
        1,
        "rank 1 has entered 5 collectives, another 6",
    ),
    "fewer steps, as many collectives": (
        [
            SilentRank(rank=0, collectives=6, last_step=8),
            SilentRank(rank=1, collectives=6, last_step=9),
        ],
        0,
        "rank 0 stands at step 8, another 9",
    ),
    "not waiting": (
        [SilentRank(rank=rank, frames=READS if rank == 2 else WAITS) for rank in range(3)],
        2,
        "rank 2 does not wait",
    ),
    "all alike": ([SilentRank(rank=rank, frames=WAITS) for rank in range(2)], 0, "the network"),
    "one process": ([SilentRank(rank=0)], 0, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rank_that_the_others_wait_for_is_found(name: str) -> None:
    ranks, expected, why = CASES[name]

    found, told = find_hanging_rank(ranks)

    assert found == expected
    assert why in told
