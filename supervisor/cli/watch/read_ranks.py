"""The newest step of each of several ranks, from their flight recorders."""

from __future__ import annotations

import contextlib

from supervisor.cli.watch.view import RankLine
from supervisor.errors import RunDirectoryError
from supervisor.storage.run.run_state import load_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader


def read_ranks(rundir: RunDirectory, now_s: float) -> list[RankLine]:
    """Returns a line for each rank, in their order; none for a training of one process."""
    try:
        count = load_run_state(rundir).world_size
    except RunDirectoryError:
        return []
    return [_line(rundir, rank, now_s) for rank in range(count if count > 1 else 0)]


def _line(rundir: RunDirectory, rank: int, now_s: float) -> RankLine:
    with (
        contextlib.suppress(OSError, RunDirectoryError),
        FlightReader(rundir.steps(rank)) as reader,
    ):
        rows = reader.read(max(0, reader.rows() - 1))
        if len(rows):
            newest = rows[-1]
            return RankLine(
                rank=rank,
                step=int(newest["step"]),
                loss=float(newest["loss"]),
                step_time_s=float(newest["step_time_s"]),
                memory_gib=float(newest["memory_gib"]),
                ago_s=max(0.0, now_s - float(newest["time"])),
            )
    return RankLine(rank=rank)
