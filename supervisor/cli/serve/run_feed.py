"""What the live page shows of one run, as JSON data."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Collection
from typing import Any

import numpy as np

from supervisor.cli.watch.panel import record_cells
from supervisor.cli.watch.read_run import RunView
from supervisor.cli.watch.view import WatchView
from supervisor.errors import RunDirectoryError
from supervisor.masking import mask_all
from supervisor.records import plain
from supervisor.report.curves.curve_document import DrawnRun, curve_document
from supervisor.report.curves.curves import read_curves
from supervisor.report.facts.run_data import read_excerpts
from supervisor.report.facts.timeline import timeline_of
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader

LOOK_S = 1.0
SHOWN_EVENTS = 300
LANE_S = 60
LANE_ROWS = 6000
"""Rows read for a lane: a hundred steps a second."""
TONES = {"running": "info", "completed": "good", "interrupted": "warn"}


class RunFeed:
    """Reads a run for all readers of its page, at most once in `LOOK_S`."""

    def __init__(self, rundir: RunDirectory) -> None:
        self._rundir = rundir
        self._view = RunView(rundir)
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {}
        self._read_s = -math.inf
        self._curves: dict[Any, dict[str, Any]] = {}
        self._curves_rows = -1

    def state(self) -> dict[str, Any]:
        """Returns what the page shows beside the curves; `rows` grows with each step."""
        with self._lock:
            if time.monotonic() - self._read_s >= LOOK_S:
                self._state = mask_all(self._read())
                self._read_s = time.monotonic()
            return self._state

    def curves(self, names: Collection[str], first_step: float, last_step: float) -> dict[str, Any]:
        """Returns a document of `curve_document`; the same one until there are more steps.

        Raises:
            OSError, RunDirectoryError: the steps cannot be read.
        """
        key = (frozenset(names), first_step, last_step)
        with self._lock:
            rows = self._view.rows()
            if rows != self._curves_rows:
                self._curves, self._curves_rows = {}, rows
            if key not in self._curves:
                run = DrawnRun(
                    name=self._rundir.root.name,
                    curves=read_curves(
                        self._rundir, names, first_step=first_step, last_step=last_step
                    ),
                    events=self._view.events(),
                    lines=self._view.lines(),
                )
                self._curves[key] = mask_all(curve_document([run]))
            return self._curves[key]

    def _read(self) -> dict[str, Any]:
        try:
            view = self._view.look()
        except (OSError, RunDirectoryError) as error:
            view = WatchView(title=self._rundir.root.name, state=f"cannot be read: {error}")
        log, stacks = read_excerpts(self._rundir)
        events = self._view.events()
        story = timeline_of(events)
        return {
            "title": view.title,
            "state": view.state,
            "tone": _tone(view),
            "ended": view.ended,
            "first_lines": view.first_lines,
            "shortfalls": view.shortfalls,
            "attempt": view.attempt,
            "rows": self._view.rows(),
            "facts": {**record_cells(view), **_risk(view), **view.facts},
            "events": [plain(entry) for entry in story[-SHOWN_EVENTS:]],
            "events_left_out": max(0, len(story) - SHOWN_EVENTS),
            "log": None if log is None else plain(log),
            "stacks": [plain(stack) for stack in stacks],
            "ranks": self._ranks(len(view.ranks)),
        }

    def _ranks(self, count: int) -> list[dict[str, Any]]:
        """Each of several ranks: its newest step, and its lane."""
        newest = {}
        for rank in range(count):
            with (
                contextlib.suppress(OSError, RunDirectoryError),
                FlightReader(self._rundir.steps(rank)) as reader,
            ):
                rows = reader.read(max(0, reader.rows() - LANE_ROWS))
                if len(rows):
                    newest[rank] = rows
        end_s = max((float(rows["time"][-1]) for rows in newest.values()), default=0.0)
        return [_rank(rank, rows, end_s) for rank, rows in newest.items()]


def _rank(rank: int, rows: np.ndarray, end_s: float) -> dict[str, Any]:
    """`lane`: steps in each second of the last `LANE_S` before the newest step of any rank."""
    seconds = np.floor(end_s - rows["time"]).astype(np.int64)
    recent = seconds[(seconds >= 0) & (seconds < LANE_S)]
    step_s = float(rows["step_time_s"][-1])
    return {
        "rank": rank,
        "step": int(rows["step"][-1]),
        "step_ms": round(1000 * step_s, 1) if math.isfinite(step_s) else None,
        "ago_s": round(max(0.0, time.time() - float(rows["time"][-1]))),
        "lane": np.bincount(recent, minlength=LANE_S)[::-1].tolist(),
    }


def _tone(view: WatchView) -> str:
    if not view.ended:
        return "bad" if view.lines.is_alarm(view.risk) else "info"
    tone = TONES.get(view.state, "bad")
    return "warn" if view.shortfalls and tone == "good" else tone


def _risk(view: WatchView) -> dict[str, str]:
    return {"risk": f"{view.risk:.2g}"} if math.isfinite(view.risk) else {}
