"""Which of several ranks hangs, where all of them are silent."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.parent.watching.collective_records import RankCollectives, find_awaited_rank

_COUNT = struct.Struct("<Q")
_WAITING = ("torch/distributed/", "_engine_run_backward", "rank_board.py")
"""In the innermost frames of a rank that waits for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentRank:
    """What is known of one rank of a hung attempt.

    Attributes:
        rank: which.
        collectives: how many it has entered; None if that is not known.
        last_step: the last step that it has recorded.
        frames: of its main thread, innermost first.
        records: torch's of its last collectives; None if there are none.
    """

    rank: int
    collectives: int | None = None
    last_step: int | None = None
    frames: tuple[str, ...] = ()
    records: RankCollectives | None = None


def find_hanging_rank(ranks: Sequence[SilentRank]) -> tuple[int, str]:
    """Returns the rank that the others wait for, and how that was seen.

    It is not in the collective in which they are, has entered fewer, or recorded fewer steps, or
    does not stand where one waits for others. If none is found the first is returned, and that all
    are alike.
    """
    if len(ranks) == 1:
        return ranks[0].rank, ""
    records = {rank.rank: rank.records for rank in ranks if rank.records is not None}
    if len(records) == len(ranks) and (awaited := find_awaited_rank(records)) is not None:
        return awaited
    counts = {rank.rank: rank.collectives for rank in ranks if rank.collectives is not None}
    steps = {rank.rank: -1 if rank.last_step is None else rank.last_step for rank in ranks}
    if len(counts) == len(ranks) and len(set(counts.values())) > 1:
        found = min(counts, key=lambda rank: (counts[rank], rank))
        return found, f"rank {found} has entered {counts[found]} collectives, another " + str(
            max(counts.values())
        )
    if len(set(steps.values())) > 1:
        found = min(steps, key=lambda rank: (steps[rank], rank))
        return found, f"rank {found} stands at step {steps[found]}, another " + str(
            max(steps.values())
        )
    busy = [rank.rank for rank in ranks if rank.frames and not _waits(rank)]
    if len(busy) == 1:
        return busy[0], f"rank {busy[0]} does not wait for the others, and they wait"
    return ranks[0].rank, "all ranks stand at the same place: the network, or a device"


def read_collectives(path: Path) -> int | None:
    """Returns what a rank has left there; None if nothing is known."""
    try:
        data = path.read_bytes()[: _COUNT.size]
    except OSError:
        return None
    count = int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0
    return count or None


def _waits(rank: SilentRank) -> bool:
    return any(word in frame for frame in rank.frames[:3] for word in _WAITING)
