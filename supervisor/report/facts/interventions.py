"""What was done about trouble, with its receipts."""

from __future__ import annotations

from typing import Any

from supervisor.report.facts.crash_report import Intervention
from supervisor.report.facts.figures import integer, number
from supervisor.report.facts.run_data import RunData
from supervisor.storage.journal.treatments import ALSO as _ALSO
from supervisor.storage.journal.treatments import NOT_DONE, PROTECTIVE, is_verdict


def build_interventions(run_data: RunData) -> tuple[Intervention, ...]:
    """Returns every treatment in the order of time, each once.

    A rollback, a left-out update and a restart have events of their own kind; where the journal
    also holds the `action` that ordered it, that line alone counts.
    """
    actions = [event for event in run_data.of_kind("action") if not is_verdict(event)]
    acted = {_place(event, str(event.get("name"))) for event in actions}
    found = []
    for event in run_data.of_kind("action", *_ALSO):
        name = str(event.get("name") or _ALSO.get(str(event.get("kind"))) or "unnamed")
        if event.get("kind") != "action" and _place(event, name) in acted:
            continue
        if is_verdict(event):
            continue
        found.append(_intervention(event, name, run_data))
    return tuple(found)


def is_treatment(intervention: Intervention) -> bool:
    """Says whether it changed the run; a checkpoint or snapshot only protects it."""
    return intervention.name not in PROTECTIVE and intervention.outcome not in NOT_DONE


def would_have(run_data: RunData) -> list[dict[str, Any]]:
    """Returns the treatments that a policy which only observes would have made, in their order."""
    return [
        event
        for event in run_data.of_kind("action")
        if event.get("outcome") == "would_have" and event.get("name") not in PROTECTIVE
    ]


def _intervention(event: dict[str, Any], name: str, run_data: RunData) -> Intervention:
    outcome = str(event.get("outcome") or "")
    if not outcome and event.get("applied") is not None:
        outcome = "applied" if event["applied"] else "not applied"
    if event.get("applied") is not False:  # of one that was not made nothing can be said
        outcome = _verified(event, name, run_data) or outcome
    detail = str(event.get("detail") or event.get("reason") or "")
    if event.get("kind") == "restart" and event.get("next_attempt"):
        outcome = f"attempt {event['next_attempt']}"
    if event.get("kind") == "rollback" and not detail:
        detail = f"to the state of step {integer(event.get('to_step'))}"
    return Intervention(
        name=name,
        step=integer(event.get("step")),
        attempt=integer(event.get("attempt")),
        time=str(event.get("time") or ""),
        cause=str(event.get("cause") or ""),
        rung=integer(event.get("rung")),
        cost_s=_cost_s(event, name, run_data),
        outcome=outcome.replace("_", " "),
        detail=detail,
        undone_step=_undone(event, name, run_data),
    )


def _cost_s(event: dict[str, Any], name: str, run_data: RunData) -> float:
    """What it cost; of a restart this is known only with its outcome."""
    later = _verdict(event, name, run_data) if name == "restart" else None
    return number((later or event).get("cost_s"))


def _verified(event: dict[str, Any], name: str, run_data: RunData) -> str:
    """Whether it helped, as was found out some steps later; empty if it was not."""
    return str((_verdict(event, name, run_data) or {}).get("outcome") or "")


def _verdict(event: dict[str, Any], name: str, run_data: RunData) -> dict[str, Any] | None:
    step = integer(event.get("step"))
    for later in run_data.of_kind("action"):
        if is_verdict(later) and later.get("name") == name and later.get("applied_at") == step:
            return later
    return None


def _undone(event: dict[str, Any], name: str, run_data: RunData) -> int | None:
    """The step at which this action was taken back, before it was applied once more."""
    start = run_data.events.index(event)
    for later in run_data.events[start + 1 :]:
        if later.get("name") != name:
            continue
        if later.get("kind") == "action_undone":
            return integer(later.get("step"))
        if later.get("kind") == "action" and not is_verdict(later):
            return None
    return None


def _place(event: dict[str, Any], name: str) -> tuple[str, int | None, int | None]:
    return name, integer(event.get("attempt")), integer(event.get("step"))
