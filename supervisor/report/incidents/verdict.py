"""The first lines of a report: what happened in two sentences, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from supervisor.events.step_events import AlertEvent
from supervisor.report.facts.crash_report import AttemptFacts, Incident
from supervisor.report.facts.figures import count, lowered, show
from supervisor.report.facts.interventions import would_have
from supervisor.report.facts.run_data import RunData
from supervisor.report.incidents.ending import ends_nonfinite, is_back_after
from supervisor.report.incidents.evidence import last_checkpoint, rate_jump, rate_rise
from supervisor.report.incidents.remedies import RISE_EXPLAINS
from supervisor.shortfalls import Shortfall

TITLES = {
    "completed": "Completed",
    "gave_up": "Gave up",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "running": "Still running",
    "supervisor_died": "The supervisor died",
    "unknown": "Nothing recorded",
}
TOLD = 3


def build_title(
    end: str,
    root: Incident | None,
    treatments: int = 0,
    shortfalls: Sequence[Shortfall] = (),
) -> str:
    """Returns the end in a few words."""
    if end == "completed" and root is not None and not root.survived:
        return "Completed, not healthy"
    if end == "completed" and shortfalls:
        return f"Completed, {shortfalls[0].title}"
    if end == "completed" and treatments:
        return "Completed, treated"
    return TITLES[end]


def build_verdict(
    end: str,
    root: Incident | None,
    run_data: RunData,
    attempts: tuple[AttemptFacts, ...],
    treatments: int,
    incidents: tuple[Incident, ...] = (),
    shortfalls: Sequence[Shortfall] = (),
) -> str:
    """Returns how the run ended, what of it cannot be relied on, and why or what was overcome."""
    how = _how(end, run_data, attempts, treatments)
    if (
        end == "completed"
        and not ends_nonfinite(run_data)
        and any(not incident.survived for incident in incidents)
    ):
        how = f"{how[:-1]}, but it is not healthy."
    told = [one.sentence for one in shortfalls if root is None or one.key != root.key]
    if not told or root is not None:
        told.append(_why(end, root, run_data, attempts, incidents))
    return " ".join([how, *told]).strip()


def _how(
    end: str,
    run_data: RunData,
    attempts: tuple[AttemptFacts, ...],
    treatments: int,
) -> str:
    steps = run_data.steps
    last = f"step {int(steps.step.max())}" if len(steps) else ""
    restarts = max(0, len(attempts) - 1)
    help_ = f"after {count(restarts, 'restart')} and {count(treatments, 'treatment')}"
    if not restarts and not treatments:
        help_ = "without a restart or a treatment"
    if end == "completed" and not last:
        return f"The script ran to its end, {help_}, but no training step was seen."
    if end == "completed":
        sick = ", but its last loss is not finite" if ends_nonfinite(run_data) else ""
        return f"The training ran to its end{f' at {last}' if last else ''}, {help_}{sick}."
    where = f" at {last}" if last else " before its first step"
    if end == "gave_up":
        return f"The run was given up{where}, {help_}."
    if end == "interrupted":
        return f"The run was interrupted{where} and can be continued."
    if end == "failed":
        return f"The script failed{where} in a way that another attempt cannot help."
    if end == "running":
        return f"The run is still going on{f', now at {last}' if last else ''}, {help_}."
    if end == "supervisor_died":
        return f"The supervisor itself died{where}; the run can be continued."
    return "Nothing was recorded: the directory holds neither steps nor a journal."


def _why(
    end: str,
    root: Incident | None,
    run_data: RunData,
    attempts: tuple[AttemptFacts, ...],
    incidents: tuple[Incident, ...],
) -> str:
    if root is None:
        alerts = sum(event.times for event in run_data.of(AlertEvent))
        wished = would_have(run_data)
        if wished and end in ("completed", "running"):
            return (
                f"It was only watched: another policy would have treated it "
                f"{count(len(wished), 'time')}, first at step {wished[0].step} "
                f"({lowered(wished[0].reason or '').rstrip('.')})."
            )
        if end in ("completed", "running") and alerts:
            said = count(alerts, "alert")
            return f"No trouble needed help; the timeline holds {said} of little importance."
        return {
            "completed": "Nothing unusual was seen.",
            "running": "Nothing unusual was seen so far.",
            "unknown": "Either the run never started, or this is not its directory.",
            "supervisor_died": "Nothing unusual was seen until then.",
        }.get(end, "No cause was recorded.")
    if root.survived:
        first = [root, *(one for one in incidents if one is not root)]
        told = [_told(one, run_data) for one in first[:TOLD]]
        more = f"; and {len(incidents) - TOLD} more" if len(incidents) > TOLD else ""
        how = "was overcome"
        if not all(is_overcome(one, run_data) for one in incidents):
            how = "did not end the training, but its losses are not back at the level before"
        return f"What happened on the way {how}: {'; '.join(told).rstrip('.')}{more}."
    if root.key in ("interrupted", "preempted", "supervisor_died"):
        step = last_checkpoint(run_data, stable=False)
        if step is None:
            return "No checkpoint is known: it would start from the beginning."
        return f"Its newest checkpoint is that of step {step}."
    same = sum(attempt.cause == root.key and attempt.last_step == root.step for attempt in attempts)
    times = f", {same} times at the same step" if same > 1 else ""
    return f"The cause{times}: {_told(root, run_data)}."


def is_overcome(incident: Incident, run_data: RunData) -> bool:
    """Whether the run went on past it, and for numerical trouble at the level before, measured."""
    if not incident.survived or not incident.numerical or incident.step is None:
        return incident.survived
    return is_back_after(run_data, incident.step, incident.attempt)


def blame(root: Incident, run_data: RunData) -> Incident:
    """Returns the root cause that the first sentence names. If the learning rate jumped before
    numerical trouble, the jump is the cause; so is a mistake of the script that explains it."""
    told = _told(root, run_data)
    if told == lowered(root.sentence).rstrip("."):
        return root
    key = "learning_rate" if _explaining(root, run_data) is None else "mistake"
    return replace(root, key=key, sentence=f"{told[:1].upper()}{told[1:]}.")


EXPLAINS = frozenset({"gradients_never_cleared"})
"""Mistakes that make a training diverge: each update has the gradients of all batches before."""


def _explaining(incident: Incident, run_data: RunData) -> AlertEvent | None:
    """The mistake of the script, proved in this run, of which numerical trouble is a consequence:
    its proof covers all updates from the first on."""
    if not incident.numerical:
        return None
    alerts = run_data.of(AlertEvent)
    return next((a for a in alerts if a.category == "mistake" and a.alert_kind in EXPLAINS), None)


def _told(incident: Incident, run_data: RunData) -> str:
    """The sentence of an incident, with a jump of the learning rate before it; no full stop."""
    told = lowered(incident.sentence).rstrip(".")
    if not incident.numerical:
        return told
    mistake = _explaining(incident, run_data)
    if mistake is not None:
        return f"the script's mistake explains what followed: {told}"
    jump = rate_jump(run_data, before=incident.step or 0, attempt=incident.attempt)
    if jump is None:
        rise = rate_rise(run_data, before=incident.step or 0, attempt=incident.attempt)
        if rise is None or incident.survived or incident.key not in RISE_EXPLAINS:
            return told
        rates = f"rose from {show(rise[0])} to {show(rise[1])} within 20 steps"
        return f"the learning rate {rates}; {told}"
    rates = f"went from {show(jump[1])} to {show(jump[2])} at step {jump[0]}"
    return f"the learning rate {rates}; {told}"
