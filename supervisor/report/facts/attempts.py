"""The attempts of a run: one launch of the worker each."""

from __future__ import annotations

from typing import Any

import numpy as np

from supervisor.records import NAN
from supervisor.report.facts.crash_report import AttemptFacts
from supervisor.report.facts.figures import clock, integer, moment
from supervisor.report.facts.run_data import RunData

_CAUSES_OF_NOTES = {
    "completed": "completed",
    "exception": "exception",
    "system_exit": "user_error",
    "user_error": "user_error",
    "interrupted": "interrupted",
    "stop": "nonfinite",
}


def build_attempts(run_data: RunData) -> tuple[AttemptFacts, ...]:
    """Tells what is known of every attempt; one without any event of its own is known by steps."""
    numbers = {integer(event.get("attempt")) for event in run_data.of_kind("attempt_started")}
    numbers |= {int(number) for number in np.unique(run_data.steps.attempt) if number > 0}
    numbers |= {integer(event.get("attempt")) for event in run_data.of_kind("worker_exited")}
    return tuple(_attempt(run_data, number) for number in sorted(n for n in numbers if n))


def first_exit(run_data: RunData, attempt: int) -> dict[str, Any] | None:
    """Returns the exit that came first in time: the others are its consequence."""
    exits = [e for e in run_data.of_kind("worker_exited") if integer(e.get("attempt")) == attempt]
    failed = [event for event in exits if event.get("cause") != "completed"]
    return next(iter(failed or exits), None)


def _attempt(run_data: RunData, number: int) -> AttemptFacts:
    mine = [event for event in run_data.events if integer(event.get("attempt")) == number]
    steps = run_data.steps.of_attempt(number)
    exit_event = first_exit(run_data, number) or _exit_of_notes(run_data, number) or {}
    resumed: dict[str, Any] = next((e for e in mine if e.get("kind") == "resumed"), {})
    began: dict[str, Any] = next((e for e in mine if e.get("kind") == "attempt_started"), {})
    from_step = integer(resumed.get("from_step"))
    started = _first(moment(e.get("time")) for e in mine if e.get("kind") == "attempt_started")
    if started != started:
        started = _first(float(value) for value in steps.time[:1])
    hung = any(event.get("kind") == "hang_detected" for event in mine)
    ended = moment(exit_event.get("time"))
    if ended != ended and len(steps):
        ended = float(steps.time[-1])
    last = integer(exit_event.get("last_step"))
    return AttemptFacts(
        number=number,
        started=clock(started),
        ended=clock(ended),
        seconds=ended - started,
        from_step=integer(began.get("checkpoint_step")) if from_step is None else from_step,
        exactness=_exactness(resumed, mine),
        first_step=int(steps.step[0]) if len(steps) else None,
        last_step=int(steps.step[-1]) if len(steps) else last,
        cause="hang" if hung else str(exit_event.get("cause") or ""),
        returncode=integer(exit_event.get("returncode")),
        signum=integer(exit_event.get("signum")),
        evidence=sentences(exit_event.get("evidence")),
    )


def _exactness(resumed: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """What the resume said, unless its first step had another loss than before the kill."""
    if any(event.get("found") == "another loss" for event in events):
        return "approximate"
    return str(resumed.get("exactness") or "")


def sentences(value: Any) -> tuple[str, ...]:
    """Returns evidence as a tuple of strings, whether it came as one string or as a list."""
    if not value:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    return (str(value),)


def _exit_of_notes(run_data: RunData, number: int) -> dict[str, Any] | None:
    """What the worker itself noted, when the parent was gone and wrote no `worker_exited`."""
    notes = [note for note in run_data.exit_notes if integer(note.get("attempt")) == number]
    if not notes:
        return None
    note = min(notes, key=lambda note: moment(note.get("time")))
    said = ": ".join(str(note[name]) for name in ("exception", "message") if note.get(name))
    cause = _CAUSES_OF_NOTES.get(str(note.get("kind")), "")
    evidence = [*sentences(note.get("evidence")), *([said] if said else [])]
    return {**note, "cause": cause, "evidence": evidence}


def _first(values: Any) -> float:
    return next(iter(values), NAN)
