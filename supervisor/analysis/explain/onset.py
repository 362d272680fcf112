"""Where the trouble of a run began."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from supervisor.codes import ExitCause
from supervisor.errors import SupervisorError
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.run_events import WorkerExited
from supervisor.events.step_events import RiskEvent, RollbackEvent, UpdateSkipped
from supervisor.storage.journal.journal import read_journal
from supervisor.storage.run.run_state import load_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_group_steps
from supervisor.storage.steps.step_rows import GRAD_SEEN, LOSS_SEEN, SCALER_SKIPPED

ALARM_REACH = 100
"""An alarm at most this many steps before a crash belongs to it."""

RATE_JUMP = 3.0
"""Factor from one step to the next; a warm-up does that only in its first step, from zero."""
JUMP_REACH = 20
"""Steps; a rate that the training survived for longer is not the cause."""

_NO_FAILURE = frozenset(
    {
        ExitCause.COMPLETED,
        ExitCause.INTERRUPTED,
        ExitCause.PREEMPTED,
        ExitCause.USER_ERROR,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The trouble to be explained.

    Attributes:
        onset_step: first step at which it was visible.
        crash_step: step at which it was certain: not finite, an alarm, a skipped or rolled-back
            update, the end of the process.
        what: a few words.
    """

    onset_step: int
    crash_step: int
    what: str


def find_trouble(rundir: RunDirectory) -> Trouble:
    """Returns the first numerical trouble of a run, else the first failure of its process.

    Raises:
        SupervisorError: nothing went wrong, or the run cannot be read.
    """
    try:
        events = read_journal(rundir.journal)
    except OSError as error:
        raise SupervisorError(
            f"{rundir.journal}: {error.strerror or error}: give the directory of a run that began"
        ) from error
    if not events:
        raise SupervisorError(
            f"{rundir.journal}: holds no event that can be read: give the directory of a whole run"
        )
    ranks = load_run_state(rundir).world_size
    trouble = first_trouble(read_group_steps(rundir, ranks, all_attempts=True), events)
    if trouble is None:
        raise SupervisorError(
            f"{rundir.root}: nothing went wrong in this run: explain needs an alarm, a non-finite "
            "step or a crash"
        )
    return trouble


def first_trouble(rows: np.ndarray, events: Sequence[JournalEvent]) -> Trouble | None:
    """Pure: see `find_trouble`."""
    alarms = [
        (event.step, _onset(event, event.step))
        for event in of_kind(events, RiskEvent)
        if event.alarm and event.step is not None
    ]
    bad = np.flatnonzero(nonfinite(rows))
    candidates = []
    if len(bad):
        step = int(rows["step"][bad[0]])
        before = [onset for at, onset in alarms if step - ALARM_REACH <= at <= step]
        onset = min([step, *before])
        candidates.append(Trouble(onset_step=onset, crash_step=step, what="not finite"))
    if alarms:
        step, onset = alarms[0]
        candidates.append(Trouble(onset_step=onset, crash_step=step, what="alarm"))
    if candidates:
        return min(candidates, key=lambda trouble: trouble.onset_step)
    treated = [
        event.step
        for event in events
        if isinstance(event, (UpdateSkipped, RollbackEvent)) and event.step is not None
    ]
    if treated:
        return Trouble(onset_step=min(treated), crash_step=min(treated), what="treated")
    for ended in of_kind(events, WorkerExited):
        if ended.cause not in _NO_FAILURE:
            step = 0 if ended.last_step is None else ended.last_step + 1
            what = ended.cause.value if ended.cause else "unknown"
            return Trouble(onset_step=step, crash_step=step, what=what)
    return None


def nonfinite(rows: np.ndarray) -> np.ndarray:
    """Which rows have a non-finite loss or gradient that no GradScaler handled."""
    flags = rows["flags"]
    loss = ((flags & LOSS_SEEN) > 0) & ~np.isfinite(rows["loss"])
    grad = ((flags & GRAD_SEEN) > 0) & ~np.isfinite(rows["grad_norm"])
    scaled = (flags & SCALER_SKIPPED) > 0
    result: np.ndarray = (loss | grad) & ~scaled
    return result


def healthy(rows: np.ndarray, name: str, before_step: int, count: int = 100) -> np.ndarray:
    """Returns the last finite values of a column before a step."""
    values = rows[name][rows["step"] < before_step]
    values = values[np.isfinite(values)]
    result: np.ndarray = values[-count:]
    return result


def rate_jump(rows: np.ndarray, before_step: int) -> tuple[int, float] | None:
    """Returns the step of the last jump of the learning rate before a step, and old over new rate.

    Only jumps within `JUMP_REACH` steps count.
    """
    near = rows[(rows["step"] < before_step) & (rows["step"] >= before_step - JUMP_REACH)]
    for at in range(len(near) - 1, 0, -1):
        old, new = float(near["lr"][at - 1]), float(near["lr"][at])
        if 0 < RATE_JUMP * old < new < math.inf:
            return int(near["step"][at]), old / new
    return None


def _onset(event: RiskEvent, step: int) -> int:
    onset = event.onset_step
    return onset if onset is not None and 0 <= onset <= step else step
