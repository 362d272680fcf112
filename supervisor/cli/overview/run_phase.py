"""The present phase of a run, from its journal: starting, fast-forwarding, training, stopping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from supervisor.events.event import JournalEvent
from supervisor.events.run_events import (
    AttemptStarted,
    GaveUp,
    HangDetected,
    RestartEvent,
    RunFinished,
    SignalReceived,
    WorkerExited,
)
from supervisor.events.state_events import Resumed
from supervisor.ranks import FIRST_RANK
from supervisor.storage.run.mailboxes import describe_replay, replayed_steps
from supervisor.storage.run.rundir import RunDirectory

_MOMENTS = (
    *(AttemptStarted, Resumed, RestartEvent, WorkerExited, SignalReceived),
    *(HangDetected, GaveUp, RunFinished),
)
TRAINING = "training"


def find_phase(
    rundir: RunDirectory, events: Sequence[JournalEvent], *, attempt: int, now_s: float
) -> str:
    """Returns a few words about a run that has not ended.

    Args:
        rundir: the run.
        events: of its journal, in order.
        attempt: the last one that recorded a step, 0 for none.
        now_s: unix time.
    """
    event = next((e for e in reversed(events) if isinstance(e, _MOMENTS)), None)
    age_s = max(0.0, now_s - unix_time(event.time)) if event else 0.0
    match event:
        case None:
            return "starting"
        case SignalReceived(name=name, grace_s=float(grace_s)):
            left_s = _left(grace_s, age_s)
            return f"stopping ({name}): saves and ends, killed in {left_s:.0f} s at most"
        case RestartEvent(next_attempt=number, delay_s=delay_s):
            return f"restarting: attempt {number} in {_left(delay_s, age_s):.0f} s"
        case HangDetected():
            return "stopping a worker that hangs"
        case WorkerExited() | GaveUp() | RunFinished():
            return "stopping: the worker has ended"
        case AttemptStarted() if attempt < (event.attempt or 0):
            return _beginning(rundir, event, age_s)
    return TRAINING


def _beginning(rundir: RunDirectory, event: AttemptStarted, age_s: float) -> str:
    target = event.checkpoint_step
    if target is None:
        return f"starting, for {age_s:.0f} s"
    done = replayed_steps(rundir.replayed(FIRST_RANK), unix_time(event.time))
    if done is None:
        return f"restarting: goes back to step {target}, for {age_s:.0f} s"
    return describe_replay(done, target, age_s)


def unix_time(text: Any) -> float:
    """Returns the unix time of an ISO 8601 string, 0 for anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _left(allowed_s: float, age_s: float) -> float:
    return max(0.0, allowed_s - age_s) if math.isfinite(allowed_s) else 0.0
