"""The trouble of a run, piece by piece, in the order of time.

Numerical signs that lie close together are one incident whose cause is the first of them. The end
of a process is an incident of its own, unless numerical trouble led to it: then it is that one's
consequence and stands in its evidence. So noise of a teardown can never replace what came first.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from supervisor.records import NAN
from supervisor.report.facts.crash_report import AttemptFacts, Incident
from supervisor.report.facts.figures import clock, integer, moment, number, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.incidents.bad_samples import samples_behind
from supervisor.report.incidents.collapse import is_confirmed, is_still_collapsed, latents_at_end
from supervisor.report.incidents.ending import ends_nonfinite, stays_high
from supervisor.report.incidents.evidence import numerical_evidence
from supervisor.report.incidents.incident_sentence import numerical_sentence
from supervisor.report.incidents.process_incident import PROCESS_CAUSES, process_incident
from supervisor.storage.journal.treatments import PROTECTIVE, is_verdict

CLUSTER_STEPS = 50
CONSEQUENCE_STEPS = 10
SURVIVED_STEPS = 20
RECOVERED_STEPS = 5  # after numerical trouble, within its attempt
KEYS = {
    "nonfinite": "nonfinite_loss",
    "spike": "loss_spike",
    "divergence": "divergence",
    "loss_scale": "loss_scale_collapse",
    "collapse": "collapse",
    "dead_units": "dead_units",
    "plateau": "plateau",
    "learning_rate": "learning_rate",
    "resources": "resources",
}
_NONFINITE = re.compile(r"\b(nan|inf|infinite|infinity|non-?finite|not finite)\b", re.IGNORECASE)
ORDERED = "ordered after"
"""How the reason of a treatment begins that a restart ordered: what it answers was told before."""


@dataclass(frozen=True, slots=True)
class _Sign:
    time_s: float
    step: int
    attempt: int | None
    key: str
    text: str
    weighty: bool
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
    # At the same step the measured value says more than what was concluded from it.
    return sorted(signs, key=lambda sign: (sign.attempt or 0, sign.step))


def _signs_of_steps(run_data: RunData) -> list[_Sign]:
    steps = run_data.steps
    # A GradScaler searches its scale by overflowing now and then: that is its health, not trouble.
    benign = steps.scaler_skipped | np.isfinite(steps.loss_scale)
    bad = steps.nonfinite_loss | (steps.nonfinite_grad & ~benign)
    signs = []
    for row in np.flatnonzero(bad):
        is_loss = bool(steps.nonfinite_loss[row])
        value = steps.loss[row] if is_loss else steps.grad_norm[row]
        name = "loss" if is_loss else "gradient norm"
        signs.append(
            _Sign(
                float(steps.time[row]),
                int(steps.step[row]),
                int(steps.attempt[row]),
                "nonfinite_loss" if is_loss else "nonfinite_gradient",
                f"the {name} became {show(float(value))}",
                True,
            )
        )
    return signs


def _signs_of_events(run_data: RunData) -> list[_Sign]:
    signs = []
    steps = run_data.steps
    saw_nonfinite = bool((steps.nonfinite_loss | steps.nonfinite_grad).any())
    for event in run_data.of_kind("alert", "risk", "action", "rollback", "update_skipped"):
        step = integer(event.get("step"))
        if step is None:
            continue
        kind, cause = event.get("kind"), str(event.get("cause") or "")
        if is_verdict(event) or event.get("severity") in ("low", "medium"):
            continue
        if kind == "action" and (event.get("name") in PROTECTIVE or event.get("name") == "restart"):
            continue
        if event.get("outcome") == "refused":  # and so is what it was to be for
            continue
        if kind == "risk" and not _is_alarm(event, run_data):
            continue
        done = event.get("applied") is not False
        confirmed = is_confirmed(event)
        weighty = done and (kind != "alert" or event.get("severity") == "critical" or confirmed)
        text = str(event.get("message") or event.get("reason") or event.get("detail") or "")
        if cause in PROCESS_CAUSES - {"nonfinite"}:
            continue
        key = KEYS.get(cause, "numerical")
        if key == "nonfinite_loss" and not (saw_nonfinite or _NONFINITE.search(text)):
            key = "numerical"  # none was recorded: a verdict from before, or a damaged journal
        if key == "nonfinite_loss" and "grad" in f"{event.get('alert_kind', '')} {text}".lower():
            key = "nonfinite_gradient"
        time_s = moment(event.get("time"))
        attempt = integer(event.get("attempt"))
        if text.startswith(ORDERED):
            continue
        lasts = confirmed and is_still_collapsed(run_data, event)
        share = number(event.get("calibrated"))
        signs.append(_Sign(time_s, step, attempt, key, text.rstrip("."), weighty, lasts, share))
    return signs


def _is_alarm(event: dict[str, Any], run_data: RunData) -> bool:
    if event.get("alarm") is not None:
        return bool(event["alarm"])
    threshold = number(run_data.policy.get("alarm_threshold"))
    risk = number(event.get("risk", event.get("probability")))
    return risk >= (threshold if math.isfinite(threshold) else 0.5)


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
    first = cluster[0]
    if first.key == "numerical":
        named = [sign for sign in cluster if sign.key != "numerical" and sign.step == first.step]
        first = named[0] if named else first
    said = first.text or next((sign.text for sign in cluster if sign.text), "")
    sentence = numerical_sentence(
        run_data, key=first.key, step=first.step, attempt=first.attempt, said=said
    )
    evidence_for, evidence_against = numerical_evidence(
        run_data, step=first.step, end=cluster[-1].step, attempt=first.attempt
    )
    if first.key == "collapse":  # the losses of a collapsed model are finite and calm
        evidence_for = latents_at_end(run_data)
    shares = [sign.share for sign in cluster if math.isfinite(sign.share)]
    if shares:
        told = f"of recorded steps with such a risk, {shares[0]:.0%} led to a crash within 20 steps"
        evidence_for = (*evidence_for, f"The forecast gave the alarm: {told}.")
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
    samples = samples_behind(run_data, incident)
    if not samples:
        return incident
    with_samples = f"{incident.sentence.rstrip('.')}: {samples} held NaN or infinity."
    return replace(incident, sentence=with_samples)


def _is_consequence(cluster: list[_Sign], ended: Incident) -> bool:
    if cluster[0].attempt != ended.attempt or ended.step is None:
        return False
    if ended.key == "nonfinite":
        return True
    near = ended.step - cluster[-1].step <= CONSEQUENCE_STEPS
    return ended.key in ("exception", "user_error") and near


def _went_on(
    run_data: RunData, attempt: int | None, step: int | None, *, later_attempt: bool = False
) -> bool:
    """Says whether enough finite steps followed, or the training reached its end in health."""
    if run_data.run.get("state") == "completed" and (later_attempt or not ends_nonfinite(run_data)):
        return True
    steps, number_ = run_data.steps, attempt or 0
    later = steps.attempt > number_ if later_attempt else steps.attempt >= number_
    beyond = later & (steps.step > (-1 if step is None else step)) & np.isfinite(steps.loss)
    needed = SURVIVED_STEPS if later_attempt else RECOVERED_STEPS
    return int(beyond.sum()) >= needed
