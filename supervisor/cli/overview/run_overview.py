"""Sums up a run in one line."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.cli.overview.run_phase import unix_time
from supervisor.errors import RunDirectoryError
from supervisor.ranks import FIRST_RANK
from supervisor.records import plain
from supervisor.report.facts.figures import duration
from supervisor.storage.journal.events import count_treatments, read_journal
from supervisor.storage.run.lease import living_holder
from supervisor.storage.run.run_state import RunState, has_live_parent, load_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader

LOOK_BACK = 100
"""Steps searched for the last loss; some scripts have one only every few steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A line of `supervisor list`.

    Attributes:
        name: of its folder.
        state: as in run.json, ``died`` if that says running but the supervisor is gone, or
            ``unreadable``.
        script: path, or name of a module.
        started: ISO 8601, UTC.
        attempts: how many were begun.
        last_step: of rank 0; None before the first one.
        last_loss: last one seen on rank 0; None without any.
        treatments: number of treatments in all attempts.
        age_s: seconds since the start; None if unknown.
    """

    name: str
    path: str
    state: str
    script: str = ""
    started: str = ""
    attempts: int = 0
    last_step: int | None = None
    last_loss: float | None = None
    treatments: int = 0
    age_s: float | None = None

    @property
    def is_sick(self) -> bool:
        """Whether the last loss was no number."""
        return self.last_loss is not None and not math.isfinite(self.last_loss)

    @property
    def verdict(self) -> str:
        """The state, and whether the last loss was a number."""
        return f"{self.state}, sick" if self.is_sick else self.state


def find_runs(folder: Path) -> list[RunOverview]:
    """Returns the runs directly below `folder`, newest first; a missing folder has none."""
    found = [overview(path.parent) for path in folder.glob("*/run.json")]
    return sorted(found, key=lambda run: (run.started, run.name), reverse=True)


def overview(path: Path) -> RunOverview:
    """Returns the overview of the run at `path`, whatever it finds there."""
    rundir = RunDirectory(path)
    try:
        run = load_run_state(rundir)
    except RunDirectoryError:
        return RunOverview(name=path.name, path=str(path), state="unreadable")
    last_step, last_loss, treatments = None, None, 0
    with (
        contextlib.suppress(OSError, RunDirectoryError),
        FlightReader(rundir.steps(FIRST_RANK)) as reader,
    ):
        last_step = reader.last_step()
        last_loss = _last_loss(reader)
    with contextlib.suppress(OSError):
        treatments = count_treatments(read_journal(rundir.journal)).total()
    begun_s = unix_time(run.started_at)
    return RunOverview(
        name=path.name,
        path=str(path),
        state="died" if has_died(rundir, run) else run.state,
        script=run.script,
        started=run.started_at,
        attempts=run.attempts,
        last_step=last_step,
        last_loss=last_loss,
        treatments=treatments,
        age_s=max(0.0, time.time() - begun_s) if begun_s else None,
    )


def _last_loss(reader: FlightReader) -> float | None:
    records = reader.records(max(0, reader.rows() - LOOK_BACK))
    return next((r.loss for r in reversed(records) if r.loss_seen), None)


def has_died(rundir: RunDirectory, run: RunState) -> bool:
    """Whether the run's supervisor ended without saying so.

    On another host only an expired lease shows that.
    """
    if run.state != "running" or has_live_parent(run):
        return False
    if run.host == socket.gethostname():
        return living_holder(rundir) is None
    return rundir.lease.exists() and living_holder(rundir) is None


HEADINGS = ("RUN", "VERDICT", "STEP", "LOSS", "TREATED", "AGE", "SCRIPT")
SHORTENED = ("RUN", "SCRIPT")


def runs_data(runs: Iterable[RunOverview]) -> list[dict[str, Any]]:
    """Returns what `--json` prints."""
    return [{**plain(run), "verdict": run.verdict} for run in runs]


def run_rows(runs: Iterable[RunOverview]) -> list[tuple[object, ...]]:
    """Returns a row for each run."""
    return [
        (
            run.path,
            run.verdict,
            "-" if run.last_step is None else run.last_step,
            "-" if run.last_loss is None else f"{run.last_loss:.4g}",
            run.treatments or "-",
            "-" if run.age_s is None else duration(run.age_s),
            run.script,
        )
        for run in runs
    ]
