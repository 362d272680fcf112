"""The cost ledger: where the seconds of a run went."""

from __future__ import annotations

import math

import numpy as np

from supervisor.events.run_events import HangDetected, WorkerExited
from supervisor.events.step_events import ActionEvent, RollbackEvent
from supervisor.report.facts.attempts import first_exit
from supervisor.report.facts.crash_report import Cost
from supervisor.report.facts.figures import integer, moment
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import Bools, Floats, StepTable


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
    _, newest = np.unique(steps.step[::-1], return_index=True)
    useful[len(steps) - 1 - newest] = True
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
