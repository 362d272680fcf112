"""The steps of a run that are new since the last look, with what was judged and done about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from supervisor.events.event import of_kind
from supervisor.events.step_events import AlertEvent
from supervisor.ranks import FIRST_RANK
from supervisor.storage.journal.events import count_treatments, read_journal
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import read_rates
from supervisor.storage.steps.flight_reader import FlightReader
from supervisor.storage.steps.step_rows import step_values

AWAITS_RISK = 64
"""Newest steps that wait until they are judged; they are judged in blocks of at most 32."""
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStep:
    """One row of the flight recorder.

    Attributes:
        row: its number.
        step: it may come again, after a rollback or a restart.
        time_s: unix seconds.
        values: by name, also `risk`, `attempt`, `applied_lr` and, so far, `alerts`, `treatments`.
        begins_again: values of this and later steps that were told before are no longer true.
    """

    row: int
    step: int
    time_s: float
    values: Mapping[str, float]
    begins_again: bool


class NewSteps:
    """Reads the first rank's flight recorder from `row` on, while it grows."""

    def __init__(self, rundir: RunDirectory, row: int = 0) -> None:
        self._rundir = rundir
        self._path = rundir.steps(FIRST_RANK)
        self._reader = FlightReader(self._path)
        self._row = row
        self._last: tuple[int, int] | None = None
        self._journal_bytes = -1
        self._counts: Mapping[str, int] = {"alerts": 0, "treatments": 0}
        self._mistakes: dict[str, AlertEvent] = {}
        self._told: set[str] = set()

    def take(self, *, all_of_them: bool = False) -> Iterator[NewStep]:
        """Yields the rows that have come; those not judged yet only with `all_of_them`.

        Raises:
            OSError, RunDirectoryError: a file of the run cannot be read.
        """
        stop = self._reader.rows()
        if not all_of_them:
            stop = self._judged(stop)
        if stop <= self._row:
            return
        factors = read_rates(self._path)
        counts = self._count_events()
        for start in range(self._row, stop, ROWS_AT_ONCE):
            end = min(start + ROWS_AT_ONCE, stop)
            raw = self._reader.read(start, end)
            records = self._reader.records(start, end)
            columns = zip(raw["attempt"], raw["time"], raw["risk"], records, strict=True)
            for row, (attempt, time_s, risk, record) in enumerate(columns, start):
                values = {**step_values(record), "attempt": int(attempt), **counts}
                if row in factors:
                    values["applied_lr"] = record.lr * factors[row]
                if not math.isnan(risk):
                    values["risk"] = float(risk)
                here = (int(attempt), record.step)
                follows = self._last is not None and self._last < here
                again = not follows or self._last is None or self._last[0] != here[0]
                self._last = here
                self._row = row + 1
                yield NewStep(
                    row=row,
                    step=record.step,
                    time_s=float(time_s),
                    values=values,
                    begins_again=again,
                )

    def mistakes(self) -> list[AlertEvent]:
        """Silent mistakes of the script, each kind once."""
        new = [event for kind, event in self._mistakes.items() if kind not in self._told]
        self._told |= self._mistakes.keys()
        return new

    def close(self) -> None:
        self._reader.close()

    def _judged(self, rows: int) -> int:
        """How many rows need not wait any more."""
        first = max(self._row, rows - AWAITS_RISK)
        judged = np.flatnonzero(np.isfinite(self._reader.read(first, rows)["risk"]))
        return first + (int(judged[-1]) + 1 if len(judged) else 0)

    def _count_events(self) -> Mapping[str, int]:
        try:
            size = self._rundir.journal.stat().st_size
        except FileNotFoundError:
            return self._counts
        if size != self._journal_bytes:
            self._journal_bytes = size
            events = read_journal(self._rundir.journal)
            for event in of_kind(events, AlertEvent):
                if event.category == "mistake":
                    self._mistakes.setdefault(event.alert_kind, event)
            alerts = sum(event.times for event in of_kind(events, AlertEvent))
            treatments = sum(count_treatments(events).values())
            self._counts = {"alerts": alerts, "treatments": treatments}
        return self._counts
