"""Builds the frames of a run from its flight recorder, journal and checkpoints."""

from __future__ import annotations

import contextlib
import enum
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import numpy as np

from supervisor.cli.overview.run_overview import overview
from supervisor.cli.overview.run_phase import TRAINING, find_phase, unix_time
from supervisor.cli.watch.view import HISTORY, LINES, RankLine, WatchEvent, WatchView
from supervisor.codes import ActionOutcome
from supervisor.config import load_resolved_policy
from supervisor.errors import ConfigError, RunDirectoryError, SupervisorError
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import (
    GaveUp,
    HangDetected,
    RestartEvent,
    RunFinished,
    SignalReceived,
    WorkerExited,
)
from supervisor.events.state_events import Resumed, WarningEvent
from supervisor.events.step_events import (
    ActionEvent,
    ActionUndone,
    AlertEvent,
    RollbackEvent,
    UpdateSkipped,
)
from supervisor.first_lines import first_lines
from supervisor.ranks import FIRST_RANK
from supervisor.records import StepRecord
from supervisor.report.facts.figures import duration
from supervisor.risk_lines import RiskLines
from supervisor.settings import CheckpointSettings, PolicySettings
from supervisor.shortfalls import find_shortfalls
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.files.private_files import open_private
from supervisor.storage.journal.events import read_journal
from supervisor.storage.run.run_state import load_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader, read_group_steps

SHOWN = (
    *(AlertEvent, ActionEvent, ActionUndone, RollbackEvent, UpdateSkipped),
    *(HangDetected, WorkerExited, RestartEvent, Resumed, SignalReceived),
    *(WarningEvent, GaveUp, RunFinished),
)
RATE_STEPS = 100
"""Steps over which the rate is averaged: steady, and up to date within a minute."""


class RunView:
    """Reads a run directory, whether or not the run has ended."""

    def __init__(self, rundir: RunDirectory, clock: Callable[[], float] = time.time) -> None:
        self._rundir = rundir
        self._clock = clock
        self._reader = FlightReader(rundir.steps(FIRST_RANK))
        self._ring = CheckpointRing(rundir.checkpoints, CheckpointSettings())
        self._lines: RiskLines | None = None

    def look(self) -> WatchView:
        """Returns the present frame."""
        now_s = self._clock()
        run = overview(self._rundir.root)
        rows = self._reader.read(max(0, self.rows() - HISTORY))
        records = self._reader.records(max(0, self.rows() - 1))
        record = records[-1] if records else None
        judged = rows["risk"][np.isfinite(rows["risk"])]
        events = self.events()
        attempt = int(rows["attempt"][-1]) if len(rows) else 0
        ended = run.state != "running"
        state = run.state
        if not ended:
            state = find_phase(self._rundir, events, attempt=attempt, now_s=now_s)
        whole = self._all_steps() if ended else rows
        found = find_shortfalls(
            events, whole["step"], whole["loss"], whole["risk"], alarm=self.lines().alarm
        )
        return WatchView(
            title=self._rundir.root.name,
            state=state,
            attempt=max(attempt, run.attempts),
            record=record,
            risk=float(judged[-1]) if len(judged) else float("nan"),
            steps=rows["step"].tolist(),
            losses=rows["loss"].tolist(),
            risks=_carried_on(rows["risk"]),
            events=[_line(e) for e in [e for e in events if isinstance(e, SHOWN)][-LINES:]],
            observed=record.observed if record else {},
            facts=self._facts(rows, record, now_s, ended=ended, training=state == TRAINING),
            ended=ended,
            lines=self.lines(),
            ranks=read_ranks(self._rundir, now_s),
            shortfalls=[one.sentence for one in found],
            first_lines=first_lines(
                "supervisor_died" if state == "died" else run.state,
                events,
                self._rundir.root,
                last_step=run.last_step,
                reason="" if ended or state == TRAINING else state,
                shortfalls=found,
            ),
        )

    def lines(self) -> RiskLines:
        """Returns those of the run's policy, or what is usual."""
        if self._lines is None:
            try:
                self._lines = RiskLines.of(load_resolved_policy(self._rundir.policy_yaml))
            except (OSError, ConfigError):  # not written yet, or damaged: the run says so itself
                return RiskLines.of(PolicySettings())
        return self._lines

    def rows(self) -> int:
        """Returns how many steps rank 0 has recorded."""
        with contextlib.suppress(OSError, RunDirectoryError):
            return self._reader.rows()
        return 0

    def _all_steps(self) -> np.ndarray:
        """Of a run that has ended, which is judged as a whole."""
        fields = ("step", "loss", "risk", "flags")
        try:
            ranks = load_run_state(self._rundir).world_size
            return read_group_steps(self._rundir, ranks, fields=fields)
        except (OSError, RunDirectoryError):
            return self._reader.read(self.rows())

    def events(self) -> list[JournalEvent]:
        """Returns the journal; empty where there is none."""
        try:
            return read_journal(self._rundir.journal)
        except OSError:
            return []

    def _facts(
        self,
        rows: np.ndarray,
        record: StepRecord | None,
        now_s: float,
        *,
        ended: bool,
        training: bool,
    ) -> dict[str, str]:
        facts = {"elapsed": self._elapsed(now_s)}
        rate = steps_a_second(rows)
        if rate and (ended or training):
            facts["speed"] = f"{rate:.3g} steps/s"
        if record is not None and not ended:
            left = steps_left(record.observed, record.step)
            if left is not None and rate and training:
                facts["left"] = f"{duration(left / rate)} ({left} steps)"
            attempt = int(rows["attempt"][-1])
            facts["script's bar"] = own_bar(self._rundir.log(attempt, FIRST_RANK))
        if record is not None and record.memory_gib > 0:
            facts["memory"] = f"{record.memory_gib:.3g} GiB"
        facts["checkpoint"] = self._checkpoint(now_s)
        return {name: text for name, text in facts.items() if text}

    def _elapsed(self, now_s: float) -> str:
        try:
            run = load_run_state(self._rundir)
        except RunDirectoryError:
            return ""
        begun_s, ended_s = unix_time(run.started_at), unix_time(run.ended_at) or now_s
        return duration(max(0.0, ended_s - begun_s)) if begun_s else ""

    def _checkpoint(self, now_s: float) -> str:
        try:
            newest = self._ring.checkpoints()[-1:]
        except SupervisorError:
            return ""
        if not newest:
            return "none"
        return f"step {newest[0].step}, {duration(max(0.0, now_s - newest[0].time))} ago"


def steps_a_second(rows: np.ndarray) -> float:
    """Returns the rate of the last attempt's newest steps; 0 for fewer than two."""
    if not len(rows):
        return 0.0
    times = rows["time"][rows["attempt"] == rows["attempt"][-1]][-RATE_STEPS:]
    took_s = float(times[-1] - times[0])
    return (len(times) - 1) / took_s if took_s > 0 else 0.0


def _carried_on(risks: np.ndarray) -> list[float]:
    """Returns a risk for each step: one that is not judged has that of the step before."""
    known = np.isfinite(risks)
    if not known.any():
        return []
    place = np.maximum.accumulate(np.where(known, np.arange(len(risks)), 0))
    return np.where(np.isfinite(risks[place]), risks[place], 0.0).tolist()  # type: ignore[no-any-return]


def _line(event: JournalEvent) -> WatchEvent:
    time_s = unix_time(event.time)
    clock = datetime.fromtimestamp(time_s).strftime("%H:%M:%S") if time_s else ""
    is_verdict = isinstance(event, ActionEvent) and event.is_verdict
    kind = "outcome" if is_verdict else event.kind
    return WatchEvent(time=clock, step=event.step, kind=kind, sentence=_sentence(event))


def _sentence(event: JournalEvent) -> str:
    """The event's most informative field, after the name of what it is about."""
    match event:
        case ActionEvent(name=name, outcome=ActionOutcome.REFUSED):
            return f"{name} was refused: {event.detail or event.reason or 'no reason given'}"
        case ActionEvent(name=name, outcome=ActionOutcome.WOULD_HAVE):
            return f"{name} was not made, the policy only observes: {event.reason or ''}"
        case ActionEvent(is_verdict=True, name=name, outcome=ActionOutcome() as outcome):
            return f"{name} of step {event.applied_at}: {outcome.value}"
    for field in ("message", "detail", "reason", "cause", "outcome", "name"):
        value = getattr(event, field, None)
        if value:
            said = str(value.value if isinstance(value, enum.Enum) else value)
            named = getattr(event, "name", "") if field != "name" else ""
            return f"{named}: {said}" if named else said
    return ""


def read_ranks(rundir: RunDirectory, now_s: float) -> list[RankLine]:
    """Returns a line for each rank, in their order; none for a training of one process."""
    try:
        count = load_run_state(rundir).world_size
    except RunDirectoryError:
        return []
    return [_rank_line(rundir, rank, now_s) for rank in range(count if count > 1 else 0)]


def _rank_line(rundir: RunDirectory, rank: int, now_s: float) -> RankLine:
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


TOTAL = "total_steps"
"""The observed name that tells it: ``supervisor.observe(total_steps=10_000)``."""

_BAR = re.compile(r"(\d+)/(\d+) \[[\d:]+<([\d:]+),")
"""As tqdm draws it, and with it Lightning, Transformers and fastai."""
_TAIL = 4096


def steps_left(observed: Mapping[str, float], step: int) -> int | None:
    """Returns the number of steps left, None if the script does not tell its length."""
    total = observed.get(TOTAL, 0.0)
    return max(0, int(total) - step - 1) if 0 < total < 2**53 else None


def own_bar(log: Path) -> str:
    """Returns the state of the script's newest progress bar; empty without one."""
    try:
        with open_private(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            found = _BAR.findall(file.read(_TAIL).decode(errors="replace"))
    except OSError:
        return ""
    return f"{found[-1][0]} of {found[-1][1]}, {found[-1][2]} left" if found else ""
