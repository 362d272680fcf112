"""The attempts of a run: what each was, what it cost, and what each rank did."""

from __future__ import annotations

import contextlib
import math
import statistics
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from supervisor.codes import Exactness, ExitCause, ExitSign
from supervisor.errors import RunDirectoryError
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.run_events import AttemptStarted, HangDetected, WorkerExited
from supervisor.events.state_events import Resumed
from supervisor.events.step_events import ActionEvent, RollbackEvent
from supervisor.records import NAN
from supervisor.report.facts.crash_report import AttemptFacts, Cost, RankFacts
from supervisor.report.facts.figures import clock, integer, moment, number
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import Bools, Floats, StepTable, newest_rows
from supervisor.storage.run.exit_notes import bytes_asked_for, sign_of
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import read_own_times
from supervisor.storage.steps.flight_recorder import read_steps

_CAUSES_OF_NOTES = {
    "completed": ExitCause.COMPLETED,
    "exception": ExitCause.EXCEPTION,
    "system_exit": ExitCause.USER_ERROR,
    "user_error": ExitCause.USER_ERROR,
    "interrupted": ExitCause.INTERRUPTED,
    "stop": ExitCause.NONFINITE,
    "mistake": ExitCause.USER_ERROR,
}


def build_attempts(run_data: RunData) -> tuple[AttemptFacts, ...]:
    """Returns what is known of every attempt; one without an event is known by its steps."""
    numbers = {event.attempt for event in run_data.of(AttemptStarted)}
    numbers |= {int(number) for number in np.unique(run_data.steps.attempt) if number > 0}
    numbers |= {event.attempt for event in run_data.of(WorkerExited)}
    return tuple(_attempt(run_data, number) for number in sorted(n for n in numbers if n))


def first_exit(run_data: RunData, attempt: int) -> WorkerExited | None:
    """Returns the exit that came first in time: the others are its consequence."""
    exits = [event for event in run_data.of(WorkerExited) if event.attempt == attempt]
    failed = [event for event in exits if event.cause is not ExitCause.COMPLETED]
    return next(iter(failed or exits), None)


def _attempt(run_data: RunData, attempt: int) -> AttemptFacts:
    mine = [event for event in run_data.events if event.attempt == attempt]
    steps = run_data.steps.of_attempt(attempt)
    ending = first_exit(run_data, attempt) or _exit_of_notes(run_data, attempt)
    resumed = next(iter(of_kind(mine, Resumed)), None)
    began = next(iter(of_kind(mine, AttemptStarted)), None)
    from_step = resumed.from_step if resumed else None
    if from_step is None and began:
        from_step = began.checkpoint_step
    started = moment(began.time) if began else NAN
    if started != started and len(steps):
        started = float(steps.time[0])
    cause = ending.cause.value if ending and ending.cause else ""
    ended = moment(ending.time) if ending else NAN
    if ending and ending.sign is ExitSign.SUPERVISOR_DIED:
        ended = NAN  # it was found out later
    if ended != ended and len(steps):
        ended = float(steps.time[-1])
    last = ending.last_step if ending else None
    return AttemptFacts(
        number=attempt,
        started=clock(started),
        ended=clock(ended),
        seconds=ended - started,
        from_step=from_step,
        exactness=_exactness(mine),
        first_step=int(steps.step[0]) if len(steps) else None,
        last_step=int(steps.step[-1]) if len(steps) else last,
        cause=ExitCause.HANG.value if of_kind(mine, HangDetected) else cause,
        returncode=ending.returncode if ending else None,
        signum=ending.signum if ending else None,
        evidence=ending.evidence if ending else (),
        sign=ending.sign if ending else None,
        asked_bytes=ending.asked_bytes if ending else None,
    )


def _exactness(events: list[JournalEvent]) -> str:
    """What the resume said, of several ranks or where it was taken back the worst of it."""
    said = {event.exactness for event in of_kind(events, Resumed)}
    order = (Exactness.APPROXIMATE, Exactness.EXACT)
    return next((exactness.value for exactness in order if exactness in said), "")


def _exit_of_notes(run_data: RunData, attempt: int) -> WorkerExited | None:
    """The exit that the worker itself noted, if the parent was gone and wrote no
    `worker_exited`."""
    notes = [note for note in run_data.exit_notes if integer(note.get("attempt")) == attempt]
    if not notes:
        return None
    note = min(notes, key=lambda note: moment(note.get("time")))
    said = ": ".join(str(note[name]) for name in ("exception", "message") if note.get(name))
    evidence = (*_sentences(note.get("evidence")), *([said] if said else []))
    own = ExitSign.OWN_EXIT if note.get("kind") == "system_exit" else None
    return WorkerExited(
        time=_iso(note.get("time")),
        attempt=attempt,
        cause=_CAUSES_OF_NOTES.get(str(note.get("kind"))),
        returncode=None,
        signum=None,
        last_step=integer(note.get("last_step")),
        evidence=evidence,
        retry=False,
        sign=own or sign_of((*evidence, str(note.get("traceback") or ""))),
        asked_bytes=bytes_asked_for(evidence),
    )


def _iso(time_s: Any) -> str:
    try:
        return datetime.fromtimestamp(number(time_s), timezone.utc).isoformat()
    except (ValueError, OverflowError, OSError):  # no moment that a calendar has
        return ""


def _sentences(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def build_cost(run_data: RunData) -> Cost:
    """Adds up the ledger from the journal and the flight recorder; all zero for an empty run."""
    wall = _wall_s(run_data)
    steps = run_data.steps
    seconds = _step_seconds(steps)
    useful = useful_steps(run_data)
    stalled = _stalled_s(run_data)
    hung = _hung_s(run_data)
    computing = float(seconds.sum())
    # A step's time is measured from the record before it and so contains the stalls between them.
    stalled_inside = min(stalled, computing)
    share = float(seconds[useful].sum()) / computing if computing > 0 else 0.0
    computed = computing - stalled_inside
    replay = (1.0 - share) * computed
    down = _down_s(run_data)
    spent = share * computed + replay + stalled + hung + down
    return Cost(
        useful_s=share * computed,
        replayed_s=replay,
        stalled_s=stalled + hung,
        down_s=down,
        other_s=max(0.0, wall - spent),
        wall_s=max(wall, spent),
        useful_steps=int(useful.sum()),
        replayed_steps=int((~useful).sum()),
        skipped_updates=int((steps.skipped | steps.scaler_skipped).sum()),
    )


def useful_steps(run_data: RunData) -> Bools:
    """Marks the rows whose update is part of the final weights.

    Not useful are rows that a later attempt repeated, and rows that a rollback threw away; where it
    was taken back (action ``reinstate``), those since the rollback instead.
    """
    steps = run_data.steps
    useful = np.zeros(len(steps), dtype=bool)
    if not len(steps):
        return useful
    useful[newest_rows(steps.step)] = True
    taken_back = _taken_back(run_data)
    for event in run_data.of(RollbackEvent):
        source, target, attempt = event.from_step, event.to_step, event.attempt
        if source is None or target is None:
            continue
        since = taken_back.get((attempt, event.before_step))
        if since is not None:
            target, source = source, since
        lost = (steps.step > target) & (steps.step <= source)
        useful &= ~(lost & ((steps.attempt == attempt) | (attempt is None)))
    return useful


def _taken_back(run_data: RunData) -> dict[tuple[int | None, int | None], int | None]:
    """Attempt and boundary of each rollback that was taken back → the step at which that was."""
    return {
        (event.attempt, integer((event.fields or {}).get("kept_step"))): event.step
        for event in run_data.of(ActionEvent)
        if event.name == "reinstate" and event.applied
    }


def _step_seconds(steps: StepTable) -> Floats:
    """Seconds of each row; where none were recorded, the time since the attempt's last row."""
    seconds = np.array(steps.step_time_s)
    if len(seconds) > 1:
        since = np.diff(steps.time, prepend=np.nan)
        since[1:][np.diff(steps.attempt) != 0] = np.nan
        seconds = np.where(np.isfinite(seconds), seconds, since)
    return np.where(np.isfinite(seconds) & (seconds > 0), seconds, 0.0)


def _wall_s(run_data: RunData) -> float:
    times = [moment(event.time) for event in run_data.events]
    times += [float(value) for value in run_data.steps.time[[0, -1]]] if len(run_data.steps) else []
    known = [value for value in times if math.isfinite(value)]
    return max(known) - min(known) if known else 0.0


def _stalled_s(run_data: RunData) -> float:
    """Seconds of stalls, without restarts: their cost counts as down and as done again."""
    costs = [event.cost_s for event in run_data.of(ActionEvent) if not event.is_verdict]
    return sum(max(0.0, cost) for cost in costs if math.isfinite(cost))


def _hung_s(run_data: RunData) -> float:
    """From the last sign of life of each hung attempt to its end."""
    total = 0.0
    for event in run_data.of(HangDetected):
        attempt = event.attempt or 0
        steps = run_data.steps.of_attempt(attempt)
        ended = moment((first_exit(run_data, attempt) or event).time)
        if len(steps) and ended > float(steps.time[-1]):
            total += ended - float(steps.time[-1])
    return total


def _down_s(run_data: RunData) -> float:
    """From each attempt's last step or exit to the first step of the next attempt."""
    steps = run_data.steps
    total = 0.0
    if not len(steps):
        return 0.0
    starts = np.flatnonzero(np.diff(steps.attempt) != 0) + 1
    hung = {event.attempt for event in run_data.of(HangDetected)}
    for start in starts:
        begin = float(steps.time[start - 1])
        attempt = int(steps.attempt[start - 1])
        exit_time = _exit_time(run_data, attempt)
        if attempt in hung and math.isfinite(exit_time):
            begin = exit_time
        total += max(0.0, float(steps.time[start]) - begin)
    last = int(steps.attempt[-1])
    later = [event for event in run_data.of(WorkerExited) if (event.attempt or 0) > last]
    ends = [time_s for event in later if math.isfinite(time_s := moment(event.time))]
    if ends:
        # Attempts that failed before their first step: no training until the last of them ended.
        exit_time = _exit_time(run_data, last)
        begin = exit_time if math.isfinite(exit_time) else float(steps.time[-1])
        total += max(0.0, max(ends) - begin)
    return total


def _exit_time(run_data: RunData, attempt: int) -> float:
    ended = first_exit(run_data, attempt)
    return moment(ended.time) if ended else math.nan


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
        RankFacts(
            rank=rank,
            failures=failed.count(rank),
            hangs=hung.count(rank),
            pace=paces[rank].typical,
            slow_from=paces[rank].slow_from,
            **_last_figures(run_data.root, rank),
        )
        for rank in range(ranks)
    )


def _last_figures(root: Path, rank: int) -> dict[str, Any]:
    with contextlib.suppress(RunDirectoryError, OSError):
        steps = read_steps(RunDirectory(root), rank)
        if len(steps):
            return {
                "last_step": int(steps["step"][-1]),
                "last_loss": float(steps["loss"][-1]),
                "memory_gib": _largest(steps["memory_gib"]),
            }
    return {}


def _largest(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


SLOW = 0.75
"""A rank is slow in a window if the fastest one needs less than this share of its time."""
WINDOWS = 3
"""In a row, before it is called slow: a page that was not cached slows down one."""


class RankPace(NamedTuple):
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
