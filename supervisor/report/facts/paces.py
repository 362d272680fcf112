"""How fast each rank is by itself, and which one keeps the others waiting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.own_times import read_own_times

SLOW = 0.75
"""A rank is slow in a window if the fastest one needs less than this share of its time."""
WINDOWS = 3
"""In a row, before it is called slow: a page that was not cached slows down one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPace:
    """Of one rank.

    Attributes:
        typical: the fastest rank's time as a share of its own, the median of all windows; None
            without windows that all ranks have.
        slow_from: first step of the first `WINDOWS` slow windows in a row; None without them.
    """

    typical: float | None = None
    slow_from: int | None = None


def find_paces(root: Path, ranks: int) -> list[RankPace]:
    """Returns the pace of each rank of the run in `root`."""
    rundir = RunDirectory(root)
    times = []
    for rank in range(ranks):
        try:
            times.append(read_own_times(rundir.steps(rank)))
        except OSError:
            times.append({})
    shared = [step for step in times[0] if all(step in each for each in times)]
    best = {step: min(each[step] for each in times) for step in shared}
    return [
        _pace([(step, best[step] / max(each[step], 1e-9)) for step in shared]) for each in times
    ]


def _pace(scores: list[tuple[int, float]]) -> RankPace:
    if not scores:
        return RankPace()
    in_a_row: list[int] = []
    slow_from = None
    for step, score in scores:
        in_a_row = [*in_a_row, step] if score < SLOW else []
        if slow_from is None and len(in_a_row) == WINDOWS:
            slow_from = in_a_row[0]
    return RankPace(typical=statistics.median(score for _, score in scores), slow_from=slow_from)
