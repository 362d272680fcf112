"""The trouble of a run, piece by piece, in the order of time.

Numerical signs that lie close together are one incident whose cause is the first of them. The end
of a process is an incident of its own, unless numerical trouble led to it: then it is a
consequence, and part of that incident's evidence. So the noise of a teardown never hides what came
first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from supervisor.codes import ActionOutcome, Cause, DecisionSource, Severity, Subject
from supervisor.detectors.statistics.robust_window import is_leap
from supervisor.events.event import JournalEvent
from supervisor.events.step_events import (
    ActionEvent,
    AlertEvent,
    CorruptionFound,
    RiskEvent,
    RollbackEvent,
    UpdateSkipped,
)
from supervisor.records import NAN
from supervisor.report.facts.crash_report import AttemptFacts, Incident
from supervisor.report.facts.figures import clock, lowered, moment, number, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.timeline import corruption_sentence
from supervisor.report.incidents.ending import ends_nonfinite, stays_high
from supervisor.report.incidents.evidence import numerical_evidence, samples_behind
from supervisor.report.incidents.process_incident import process_incident
from supervisor.storage.journal.events import PROTECTIVE

CONFIRMED = "red"


def is_confirmed(event: AlertEvent) -> bool:
    """Says whether an alert is that of a collapse that has persisted (level red)."""
    return event.metadata.get("level") == CONFIRMED


def is_still_collapsed(run_data: RunData, event: AlertEvent) -> bool:
    """Says whether a value that the alert named lies below its line at the end of the run.

    False for an alert without lines: then the losses after it decide.
    """
    lines = event.metadata.get("lines")
    if not isinstance(lines, Mapping):
        return False
    courses = run_data.courses
    named = event.metadata.get("indicators")
    return any(
        name in courses and courses[name].last < number(line)
        for name, line in lines.items()
        if isinstance(named, Mapping) and name in named
    )


def latents_at_end(run_data: RunData) -> tuple[str, ...]:
    """Returns one sentence with the last values of the latents; nothing if none were observed."""
    courses = run_data.courses
    told = [
        f"{name} {show(courses[name].last)}"
        for name in ("kl", "latent_variance", "active_units")
        if name in courses
    ]
    return (f"The last values of the latents: {', '.join(told)}.",) if told else ()


USUAL_STEPS = 50
_WORDS = {
    "nonfinite_loss": "the loss became NaN or infinite",
    "nonfinite_gradient": "the gradient became NaN or infinite",
    "loss_spike": "the loss or the gradient jumped",
    "divergence": "the loss diverged",
    "reward_fall": "the reward fell from the best of the run",
    "loss_scale_collapse": "the loss scale collapsed",
    "collapse": "the model collapsed",
    "dead_units": "units of the model died",
    "plateau": "the training stopped improving",
    "learning_rate": "the learning rate went wrong",
    "resources": "resources ran short",
    "corruption": "memory or the device was at fault",
    "numerical": "the signs of a coming crash were strong",
}
TOLD_WHOLE = frozenset({"loss_spike", "divergence", "learning_rate"})
"""Of these, the sentence about a figure (`codes.Subject`) says everything."""


def numerical_sentence(
    run_data: RunData, *, key: str, step: int, attempt: int | None, said: str, is_whole: bool
) -> str:
    """Returns what happened at `step`, with its figures.

    Args:
        run_data: what was recorded.
        key: of the trouble, as in the report.
        step: of its first sign.
        attempt: in which that was.
        said: the message of that sign.
        is_whole: `said` is a whole sentence, about a figure.
    """
    leap = _leap(run_data, step, attempt) if key == "loss_spike" else ""
    if leap:
        return f"At step {step} {leap}."
    said = lowered(said)
    if is_whole:
        return f"At step {step} {said}."
    words = _WORDS.get(key, key.replace("_", " "))
    return f"At step {step} {words}{f': {said}' if said else ''}."


def _leap(run_data: RunData, step: int, attempt: int | None) -> str:
    """What jumped at `step`, and from where; empty if neither loss nor gradient stands out."""
    rows = run_data.steps.of_attempt(attempt)
    before, at = rows.take(rows.step < step), rows.take(rows.step == step)
    for name, values, now in (
        ("loss", before.loss, at.loss),
        ("gradient norm", before.grad_norm, at.grad_norm),
    ):
        known = values[np.isfinite(values)][-USUAL_STEPS:]
        if not len(known) or not len(now):
            continue
        usual = float(np.median(known))
        if is_leap(float(now[-1]), usual):
            return f"the {name} jumped to {show(float(now[-1]))}, from the usual {show(usual)}"
    return ""


CLUSTER_STEPS = 50
CONSEQUENCE_STEPS = 10
SURVIVED_STEPS = 20
RECOVERED_STEPS = 5  # after numerical trouble, within its attempt
CORRUPTION = "corruption"
KEYS = {
    Cause.NONFINITE: "nonfinite_loss",
    Cause.SPIKE: "loss_spike",
    Cause.DIVERGENCE: "divergence",
    Cause.REWARD: "reward_fall",
    Cause.LOSS_SCALE: "loss_scale_collapse",
    Cause.COLLAPSE: "collapse",
    Cause.DEAD_UNITS: "dead_units",
    Cause.PLATEAU: "plateau",
    Cause.LEARNING_RATE: "learning_rate",
    Cause.RESOURCES: "resources",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """A recorded value, or what an event says, about trouble.

    Attributes:
        key: of the trouble, as in the report.
        text: in words, about `subject`.
        weighty: it is trouble by itself.
        lasting: it was still there at the end.
        share: of recorded steps with such a risk that a crash followed.
    """

    time_s: float
    step: int
    attempt: int | None
    key: str
    text: str
    weighty: bool = True
    subject: Subject | None = None
    is_measured: bool = False
    lasting: bool = False
    share: float = NAN


def find_incidents(run_data: RunData, attempts: tuple[AttemptFacts, ...]) -> tuple[Incident, ...]:
    """Returns all incidents, the first in time first, each with its evidence."""
    clusters = _clusters(_signs(run_data))
    exits = [
        process_incident(
            run_data,
            attempt,
            survived=_went_on(run_data, attempt.number, attempt.last_step, later_attempt=True),
        )
        for attempt in attempts
    ]
    found: list[Incident] = []
    for cluster in clusters:
        incident = _numerical_incident(run_data, cluster)
        for index, ended in enumerate(exits):
            if ended is not None and _is_consequence(cluster, ended):
                told = f"It ended attempt {ended.attempt}: {ended.sentence}"
                incident = replace(
                    incident,
                    survived=ended.survived,
                    evidence_for=(*incident.evidence_for, told),
                )
                exits[index] = None
        found.append(incident)
    found.extend(ended for ended in exits if ended is not None)
    return tuple(sorted(found, key=_order))


def _order(incident: Incident) -> tuple[int, int, int]:
    last = 10**18 if incident.step is None else incident.step
    return incident.attempt or 0, last, 0 if incident.numerical else 1


def _signs(run_data: RunData) -> list[_Sign]:
    signs = [*_signs_of_steps(run_data), *_signs_of_events(run_data)]
    # At the same step a measured value says more than a conclusion from it.
    return sorted(signs, key=lambda sign: (sign.attempt or 0, sign.step))


def _signs_of_steps(run_data: RunData) -> list[_Sign]:
    steps = run_data.steps
    # A GradScaler overflows now and then to find its scale: that is healthy.
    benign = steps.scaler_skipped | np.isfinite(steps.loss_scale)
    bad = steps.nonfinite_loss | (steps.nonfinite_grad & ~benign)
    signs = []
    for row in np.flatnonzero(bad):
        is_loss = bool(steps.nonfinite_loss[row])
        value = steps.loss[row] if is_loss else steps.grad_norm[row]
        name = "loss" if is_loss else "gradient norm"
        signs.append(
            _Sign(
                time_s=float(steps.time[row]),
                step=int(steps.step[row]),
                attempt=int(steps.attempt[row]),
                key="nonfinite_loss" if is_loss else "nonfinite_gradient",
                text=f"the {name} became {show(float(value))}",
                is_measured=True,
            )
        )
    return signs


def _signs_of_events(run_data: RunData) -> list[_Sign]:
    steps = run_data.steps
    signs = [sign for event in run_data.events if (sign := _sign_of(event, run_data))]
    if (steps.nonfinite_loss | steps.nonfinite_grad).any():
        return signs
    # None was recorded: a verdict from before, or a damaged journal.
    unseen = {sign for sign in signs if sign.key == "nonfinite_loss" and not sign.subject}
    return [replace(sign, key="numerical") if sign in unseen else sign for sign in signs]


def _sign_of(event: JournalEvent, run_data: RunData) -> _Sign | None:
    """What an event says about numerical trouble; None if nothing."""
    match event:
        case AlertEvent(category="mistake"):
            return None  # no trouble of the numbers: it stands at the top of the report
        case AlertEvent(severity=Severity.LOW | Severity.MEDIUM):
            return None
        case AlertEvent():
            confirmed = is_confirmed(event)
            return _sign(
                event,
                event.fact or event.message,
                event.cause,
                subject=event.subject,
                weighty=confirmed or event.severity is Severity.CRITICAL,
                lasting=confirmed and is_still_collapsed(run_data, event),
            )
        case RiskEvent() if _is_alarm(event, run_data):
            subject, share = event.subject, event.calibrated
            return _sign(event, event.reason, event.cause, subject=subject, share=share)
        case ActionEvent():
            return _sign_of_action(event)
        case CorruptionFound():
            sign = _sign(event, corruption_sentence(event))
            return sign and replace(sign, key=CORRUPTION)
        case RollbackEvent():
            return _sign(event, "", event.cause)
        case UpdateSkipped() if event.source is not DecisionSource.ORDER:
            return _sign(event, event.reason)
    return None


def _sign_of_action(event: ActionEvent) -> _Sign | None:
    if event.is_verdict or event.outcome is ActionOutcome.REFUSED:
        return None  # and so is what it was to be for
    if event.source is DecisionSource.ORDER:  # what it answers was told before
        return None
    if event.name in PROTECTIVE or event.name == "restart":
        return None
    by_cases = event.source is DecisionSource.CASE_LIBRARY  # its reason is of earlier runs, too
    text = "" if by_cases else event.reason or event.detail or ""
    weighty = event.applied is not False
    return _sign(event, text, event.cause, subject=event.subject, weighty=weighty)


def _sign(
    event: JournalEvent,
    text: str,
    cause: Cause | None = None,
    *,
    subject: Subject | None = None,
    **more: Any,
) -> _Sign | None:
    """The sign that an event is; None if it is of no step."""
    if event.step is None:
        return None
    key = KEYS.get(cause, "numerical") if cause else "numerical"
    if cause is Cause.NONFINITE and subject is Subject.GRADIENT:
        key = "nonfinite_gradient"
    return _Sign(
        time_s=moment(event.time),
        step=event.step,
        attempt=event.attempt,
        key=key,
        text=text.rstrip("."),
        subject=subject,
        **more,
    )


def _is_alarm(event: RiskEvent, run_data: RunData) -> bool:
    if event.alarm is not None:
        return event.alarm
    threshold = number(run_data.policy.get("alarm_threshold"))
    return event.probability >= (threshold if math.isfinite(threshold) else 0.5)


def _clusters(signs: list[_Sign]) -> list[list[_Sign]]:
    clusters: list[list[_Sign]] = []
    for sign in signs:
        last = clusters[-1][-1] if clusters else None
        if last and last.attempt == sign.attempt and sign.step - last.step <= CLUSTER_STEPS:
            clusters[-1].append(sign)
        else:
            clusters.append([sign])
    return [cluster for cluster in clusters if any(sign.weighty for sign in cluster)]


def _numerical_incident(run_data: RunData, cluster: list[_Sign]) -> Incident:
    first = next((sign for sign in cluster if sign.key == CORRUPTION), cluster[0])  # is proved
    if first.key == "numerical":
        named = [sign for sign in cluster if sign.key != "numerical" and sign.step == first.step]
        first = named[0] if named else first
    speaks = first if first.text else next((sign for sign in cluster if sign.text), first)
    sentence = numerical_sentence(
        run_data,
        key=first.key,
        step=first.step,
        attempt=first.attempt,
        said=speaks.text,
        is_whole=speaks.is_measured or (speaks.subject is not None and first.key in TOLD_WHOLE),
    )
    evidence_for, evidence_against = numerical_evidence(
        run_data, step=first.step, end=cluster[-1].step, attempt=first.attempt
    )
    if first.key == "collapse":  # the losses of a collapsed model are finite and calm
        evidence_for = latents_at_end(run_data)
    shares = [sign.share for sign in cluster if math.isfinite(sign.share)]
    if shares:
        told = f"of recorded steps with such a risk, {shares[0]:.0%} led to a crash within 20 steps"
        evidence_for = (*evidence_for, f"The predictor gave the alarm: {told}.")
    incident = Incident(
        key=first.key,
        sentence=sentence,
        step=first.step,
        attempt=first.attempt,
        time=clock(first.time_s),
        survived=_went_on(run_data, first.attempt, cluster[-1].step)
        and not any(sign.lasting for sign in cluster)
        and not stays_high(run_data, first.step, first.attempt),
        numerical=True,
        evidence_for=evidence_for,
        evidence_against=evidence_against,
    )
    if samples := samples_behind(run_data, incident):
        told = f"{sentence.rstrip('.')}: {samples} held NaN or infinity."
        return replace(incident, sentence=told)
    return incident


def _is_consequence(cluster: list[_Sign], ended: Incident) -> bool:
    if cluster[0].attempt != ended.attempt or ended.step is None:
        return False
    if ended.key == "nonfinite":
        return True
    is_near = ended.step - cluster[-1].step <= CONSEQUENCE_STEPS
    return is_near and ended.key in ("exception", "user_error")


def _went_on(
    run_data: RunData, attempt: int | None, step: int | None, *, later_attempt: bool = False
) -> bool:
    """Says whether enough finite steps followed, or the training ended healthy."""
    if run_data.run.get("state") == "completed" and (later_attempt or not ends_nonfinite(run_data)):
        return True
    steps, number_ = run_data.steps, attempt or 0
    later = steps.attempt > number_ if later_attempt else steps.attempt >= number_
    beyond = later & (steps.step > (-1 if step is None else step)) & np.isfinite(steps.loss)
    needed = SURVIVED_STEPS if later_attempt else RECOVERED_STEPS
    return int(beyond.sum()) >= needed
