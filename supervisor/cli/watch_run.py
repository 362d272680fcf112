"""The frames of a run, from its flight recorder and its journal."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from supervisor.cli.run_overview import overview
from supervisor.cli.watch_view import HISTORY, LINES, WatchView
from supervisor.errors import RunDirectoryError
from supervisor.storage.journal.events import read_events
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader

SHOWN = frozenset(
    {
        "alert",
        "action",
        "action_undone",
        "rollback",
        "update_skipped",
        "hang_detected",
        "worker_exited",
        "restart",
        "resumed",
        "signal_received",
        "warning",
        "gave_up",
        "run_finished",
    }
)


class RunView:
    """Looks at a run directory; the run may go on meanwhile, or be long over."""

    def __init__(self, rundir: RunDirectory) -> None:
        self._rundir = rundir
        self._reader = FlightReader(rundir.steps(0))

    def look(self) -> WatchView:
        """Returns the frame of now."""
        state = overview(self._rundir.root).state
        rows = self._reader.read(max(0, self._rows() - HISTORY))
        records = self._reader.records(max(0, self._rows() - 1))
        record = records[-1] if records else None
        judged = rows["risk"][np.isfinite(rows["risk"])]
        return WatchView(
            title=self._rundir.root.name,
            state=state,
            attempt=int(rows["attempt"][-1]) if len(rows) else 0,
            record=record,
            risk=float(judged[-1]) if len(judged) else float("nan"),
            losses=rows["loss"].tolist(),
            risks=judged.tolist(),
            events=self._events(),
            observed=record.observed if record else {},
            ended=state != "running",
        )

    def _rows(self) -> int:
        with contextlib.suppress(OSError, RunDirectoryError):
            return self._reader.rows()
        return 0

    def _events(self) -> list[tuple[int | None, str, str]]:
        try:
            events = read_events(self._rundir.journal)
        except OSError:
            return []
        shown = [event for event in events if event["kind"] in SHOWN]
        return [(event.get("step"), event["kind"], _sentence(event)) for event in shown[-LINES:]]


def _sentence(event: Mapping[str, Any]) -> str:
    for field in ("message", "detail", "reason", "cause", "outcome"):
        if event.get(field):
            name = event.get("name")
            return f"{name}: {event[field]}" if name else str(event[field])
    return str(event.get("name") or "")
