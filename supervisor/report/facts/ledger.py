"""The cost ledger: where the seconds of a run went."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from supervisor.report.facts.attempts import first_exit
from supervisor.report.facts.crash_report import Cost
from supervisor.report.facts.figures import integer, moment, number
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import Bools, Floats, StepTable
from supervisor.storage.journal.treatments import is_verdict

# The journal of a save or a rollback, and the name of the action that may have ordered it: the
# seconds stand in both lines and must be counted once.
_SAME_AS_ACTION = {"rollback": "rollback", "checkpoint_saved": "checkpoint"}


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
    replay = (1.0 - share) * computed + _fast_forward_s(run_data)
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
    for event in run_data.of_kind("rollback"):
        source, target = integer(event.get("from_step")), integer(event.get("to_step"))
        if source is None or target is None:
            continue
        attempt = integer(event.get("attempt"))
        since = taken_back.get((attempt, integer(event.get("before_step"))))
        if since is not None:
            target, source = source, since
        lost = (steps.step > target) & (steps.step <= source)
        useful &= ~(lost & ((steps.attempt == attempt) | (attempt is None)))
    return useful


def _taken_back(run_data: RunData) -> dict[tuple[int | None, int | None], int | None]:
    """Attempt and boundary of each rollback that was taken back → the step at which it was."""
    return {
        (integer(event.get("attempt")), integer(event["fields"].get("kept_step"))): integer(
            event.get("step")
        )
        for event in run_data.of_kind("action")
        if event.get("name") == "reinstate"
        and event.get("applied") is True
        and isinstance(event.get("fields"), dict)
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
    times = [moment(event.get("time")) for event in run_data.events]
    times += [float(value) for value in run_data.steps.time[[0, -1]]] if len(run_data.steps) else []
    known = [value for value in times if math.isfinite(value)]
    return max(known) - min(known) if known else 0.0


def _stalled_s(run_data: RunData) -> float:
    acted = {(_place(e), str(e.get("name"))) for e in run_data.of_kind("action")}
    total = 0.0
    for event in run_data.of_kind("action", "checkpoint_saved", "rollback"):
        if is_verdict(event):  # a restart's cost is in what was down and what was done again
            continue
        cost = number(event.get("cost_s"))
        if not math.isfinite(cost):
            cost = number(event.get("stall_s"))
        name = _SAME_AS_ACTION.get(str(event.get("kind")), "")
        if math.isfinite(cost) and not (name and (_place(event), name) in acted):
            total += max(0.0, cost)
    return total


def _place(event: dict[str, Any]) -> tuple[int | None, int | None]:
    return integer(event.get("attempt")), integer(event.get("step"))


def _hung_s(run_data: RunData) -> float:
    """From the last sign of life of each hung attempt to its end."""
    total = 0.0
    for event in run_data.of_kind("hang_detected"):
        attempt = integer(event.get("attempt")) or 0
        steps = run_data.steps.of_attempt(attempt)
        ended = moment((first_exit(run_data, attempt) or event).get("time"))
        if len(steps) and ended > float(steps.time[-1]):
            total += ended - float(steps.time[-1])
    return total


def _fast_forward_s(run_data: RunData) -> float:
    values = [number(e.get("fast_forward_s")) for e in run_data.of_kind("resumed")]
    return sum(value for value in values if math.isfinite(value) and value > 0)


def _down_s(run_data: RunData) -> float:
    """From each attempt's last step or exit to the first step of the next attempt."""
    steps = run_data.steps
    total = 0.0
    if not len(steps):
        return 0.0
    starts = np.flatnonzero(np.diff(steps.attempt) != 0) + 1
    hung = {integer(event.get("attempt")) for event in run_data.of_kind("hang_detected")}
    for start in starts:
        begin = float(steps.time[start - 1])
        attempt = int(steps.attempt[start - 1])
        exit_time = moment((first_exit(run_data, attempt) or {}).get("time"))
        if attempt in hung and math.isfinite(exit_time):
            begin = exit_time
        total += max(0.0, float(steps.time[start]) - begin)
    last = int(steps.attempt[-1])
    later = [
        e for e in run_data.of_kind("worker_exited") if (integer(e.get("attempt")) or 0) > last
    ]
    ends = [time_s for event in later if math.isfinite(time_s := moment(event.get("time")))]
    if ends:
        # Attempts that failed before their first step: no training until the last of them ended.
        exit_time = moment((first_exit(run_data, last) or {}).get("time"))
        begin = exit_time if math.isfinite(exit_time) else float(steps.time[-1])
        total += max(0.0, max(ends) - begin)
    return max(0.0, total - _fast_forward_s(run_data))
