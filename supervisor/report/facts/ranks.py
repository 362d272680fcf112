"""What each of several ranks did; nothing for a training of one process."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from supervisor.errors import RunDirectoryError
from supervisor.events.run_events import HangDetected, WorkerExited
from supervisor.records import ExitCause
from supervisor.report.facts.crash_report import RankFacts
from supervisor.report.facts.figures import integer
from supervisor.report.facts.run_data import RunData
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import read_steps
from supervisor.storage.steps.own_times import read_own_times


def build_ranks(run_data: RunData) -> tuple[RankFacts, ...]:
    """Returns the facts of each rank, in their order."""
    ranks = integer(run_data.run.get("world_size")) or 1
    if ranks == 1:
        return ()
    failed = [
        event.rank
        for event in run_data.of(WorkerExited)
        if event.rank is not None and event.cause is not ExitCause.COMPLETED
    ]
    hung = [event.rank for event in run_data.of(HangDetected)]
    paces = find_paces(run_data.root, ranks)
    return tuple(
        replace(
            _of_rank(run_data.root, rank, failed.count(rank), hung.count(rank)),
            pace=paces[rank].typical,
            slow_from=paces[rank].slow_from,
        )
        for rank in range(ranks)
    )


def _of_rank(root: Path, rank: int, failures: int, hangs: int) -> RankFacts:
    with contextlib.suppress(RunDirectoryError, OSError):
        steps = read_steps(RunDirectory(root), rank)
        if len(steps):
            return RankFacts(
                rank=rank,
                last_step=int(steps["step"][-1]),
                last_loss=float(steps["loss"][-1]),
                memory_gib=_largest(steps["memory_gib"]),
                failures=failures,
                hangs=hangs,
            )
    return RankFacts(rank=rank, failures=failures, hangs=hangs)


def _largest(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


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
