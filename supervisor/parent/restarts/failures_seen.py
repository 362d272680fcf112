"""How long this run's attempts have trained before they failed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from supervisor.codes import ExitCause
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import AttemptStarted, WorkerExited
from supervisor.events.state_events import Resumed

NEWEST = 8
"""Failures that count. The mean of eight intervals is within a third of the machine's own (its
deviation is 1/sqrt(8) of it), and a cluster that has become better is believed within a day."""
_OUTSIDE = (ExitCause.KILLED, ExitCause.PREEMPTED, ExitCause.INTERRUPTED, ExitCause.HANG)
"""What a machine does to a training; what the training does to itself comes again at its step."""


def failures_seen(events: Iterable[JournalEvent]) -> tuple[int, float]:
    """Returns how many attempts failed from outside, and the seconds for which they trained.

    Imports, data and the replay of a resume are not training: they count from the event `resumed`,
    or in an attempt from the script's start from the first event that has a step.
    """
    lengths: list[float] = []
    began, resumes = math.nan, False
    for event in events:
        if isinstance(event, AttemptStarted):
            began, resumes = math.nan, event.checkpoint_step is not None
        elif isinstance(event, WorkerExited):
            length = _seconds(event) - began
            if event.cause in _OUTSIDE and length >= 0.0:
                lengths.append(length)
        elif math.isnan(began) and (isinstance(event, Resumed) or not resumes):
            began = math.nan if event.step is None else _seconds(event)
    newest = lengths[-NEWEST:]
    return len(newest), sum(newest)


def _seconds(event: JournalEvent) -> float:
    try:
        return datetime.fromisoformat(event.time).timestamp()
    except ValueError:  # a damaged line
        return math.nan
