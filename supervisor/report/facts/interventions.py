"""What was done about trouble, with its receipts."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.codes import ActionOutcome, Cause
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import RestartEvent
from supervisor.events.step_events import (
    ActionEvent,
    ActionUndone,
    RollbackEvent,
    UpdateSkipped,
)
from supervisor.records import NAN
from supervisor.report.facts.crash_report import Intervention
from supervisor.report.facts.run_data import RunData
from supervisor.storage.journal.events import PROTECTIVE, treatment_of

_NOT_DONE = ("refused", "would have", "not applied")


def build_interventions(run_data: RunData) -> tuple[Intervention, ...]:
    """Returns every treatment in the order of time, each once.

    A rollback, a left-out update and a restart have events of their own kind; where the journal
    also holds the `action` that ordered it, that line alone counts.
    """
    found: list[Intervention] = []
    acted = {(treatment_of(e), e.attempt, e.step) for e in run_data.of(ActionEvent)}
    for event in run_data.events:
        name = treatment_of(event)
        told = not isinstance(event, ActionEvent) and (name, event.attempt, event.step) in acted
        if name and not told:
            found.append(_intervention(event, name, run_data))
    return tuple(found)


def is_treatment(intervention: Intervention) -> bool:
    """Says whether it changed the run; a checkpoint or snapshot only protects it."""
    return intervention.name not in PROTECTIVE and intervention.outcome not in _NOT_DONE


def would_have(run_data: RunData) -> list[ActionEvent]:
    """Returns the treatments that an observing policy would have made, in their order."""
    return [
        event
        for event in run_data.of(ActionEvent)
        if event.outcome is ActionOutcome.WOULD_HAVE and event.name not in PROTECTIVE
    ]


def _intervention(event: JournalEvent, name: str, run_data: RunData) -> Intervention:
    told = _told(event)
    action = event if isinstance(event, ActionEvent) else None
    outcome = told.outcome
    later = _verdict(event, name, run_data)
    made = action is None or action.applied is not False
    if later is not None and later.outcome and made and not isinstance(event, RestartEvent):
        outcome = later.outcome.value
    cost_s = action.cost_s if action else NAN
    if name == "restart" and later is not None:  # it is known only with its outcome
        cost_s = later.cost_s
    return Intervention(
        name=name,
        step=event.step,
        attempt=event.attempt,
        time=event.time,
        cause=told.cause.value if told.cause else "",
        rung=action.rung if action else None,
        cost_s=cost_s,
        outcome=outcome.replace("_", " "),
        detail=told.detail,
        undone_step=_undone(event, name, run_data),
    )


class _Told(NamedTuple):
    outcome: str
    detail: str
    cause: Cause | None = None


def _told(event: JournalEvent) -> _Told:
    """What a treatment's journal line says about it."""
    match event:
        case ActionEvent():
            outcome = event.outcome.value if event.outcome else ""
            if not outcome and event.applied is not None:
                outcome = "applied" if event.applied else "not applied"
            return _Told(outcome, event.detail or event.reason or "", event.cause)
        case RestartEvent():
            next_ = f"attempt {event.next_attempt}" if event.next_attempt else ""
            return _Told(next_, event.reason)
        case RollbackEvent():
            return _Told("", f"to the state of step {event.to_step}", event.cause)
        case UpdateSkipped():
            return _Told("", event.reason)
    return _Told("", "")


def _verdict(event: JournalEvent, name: str, run_data: RunData) -> ActionEvent | None:
    """Whether it helped, as was found out some steps later."""
    for later in run_data.of(ActionEvent):
        if later.is_verdict and later.name == name and later.applied_at == event.step:
            return later
    return None


def _undone(event: JournalEvent, name: str, run_data: RunData) -> int | None:
    """The step at which this action was taken back, before it was applied once more."""
    start = next(i for i, each in enumerate(run_data.events) if each is event)
    for later in run_data.events[start + 1 :]:
        match later:
            case ActionUndone(name=undone) if undone == name:
                return later.step
            case ActionEvent(is_verdict=False, name=again) if again == name:
                return None
    return None
