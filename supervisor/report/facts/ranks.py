"""What each of several ranks did; nothing for a training of one process."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from supervisor.errors import RunDirectoryError
from supervisor.events.run_events import HangDetected, WorkerExited
from supervisor.records import ExitCause
from supervisor.report.facts.crash_report import RankFacts
from supervisor.report.facts.figures import integer
from supervisor.report.facts.paces import find_paces
from supervisor.report.facts.run_data import RunData
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import read_steps


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
