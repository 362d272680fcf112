"""The attempts of a run: one launch of the worker each."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np

from supervisor.codes import Exactness, ExitCause, ExitSign
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.run_events import AttemptStarted, HangDetected, WorkerExited
from supervisor.events.state_events import Resumed
from supervisor.records import NAN
from supervisor.report.facts.crash_report import AttemptFacts
from supervisor.report.facts.figures import clock, integer, moment, number
from supervisor.report.facts.run_data import RunData
from supervisor.storage.run.exit_signs import bytes_asked_for, sign_of

_CAUSES_OF_NOTES = {
    "completed": ExitCause.COMPLETED,
    "exception": ExitCause.EXCEPTION,
    "system_exit": ExitCause.USER_ERROR,
    "user_error": ExitCause.USER_ERROR,
    "interrupted": ExitCause.INTERRUPTED,
    "stop": ExitCause.NONFINITE,
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
    if started != started:
        started = _first(float(value) for value in steps.time[:1])
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


def _first(values: Any) -> float:
    return next(iter(values), NAN)
