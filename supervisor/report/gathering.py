"""Gathers the facts of a run into one report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.codes import ActionOutcome
from supervisor.events.step_events import ActionEvent, AlertEvent
from supervisor.first_lines import first_lines
from supervisor.masking import mask_all, mask_command, mask_secrets
from supervisor.records import NAN
from supervisor.report.facts.anomalies import (
    PROVED,
    RATE_TOO_HIGH,
    build_anomalies,
    find_explosion,
    read_gradient_flow,
)
from supervisor.report.facts.attempts import build_attempts, build_cost, build_ranks
from supervisor.report.facts.crash_report import (
    AttemptFacts,
    CrashReport,
    Explosion,
    Incident,
    find_mistakes,
    summarise_alerts,
)
from supervisor.report.facts.figures import number, show
from supervisor.report.facts.interventions import build_interventions, would_have
from supervisor.report.facts.observed_values import sum_up
from supervisor.report.facts.run_data import RunData, load_material
from supervisor.report.facts.step_table import find_rate_changes
from supervisor.report.facts.timeline import timeline_of
from supervisor.report.incidents.ending import find_end
from supervisor.report.incidents.evidence import last_checkpoint, memory_notes
from supervisor.report.incidents.incidents import find_incidents
from supervisor.report.incidents.next_steps import build_next_steps, build_setting, resume_command
from supervisor.report.incidents.remedies import walk
from supervisor.report.incidents.verdict import blame, build_title, build_verdict, is_overcome
from supervisor.shortfalls import HIGH_LOSS, Shortfall, find_shortfalls
from supervisor.storage.journal.events import JournalTreatments, count_treatments

LATER_STEPS = 10
MEMORY_KEYS = frozenset({"out_of_memory", "host_out_of_memory", "resources"})
FROM_OUTSIDE = frozenset({"killed", "preempted", "interrupted"})
EXPLOSIVE_KEYS = frozenset(
    {"nonfinite_loss", "nonfinite_gradient", "loss_spike", "divergence", "numerical"}
)


def gather(root: Path | str) -> CrashReport:
    """Returns the report of the run in the directory `root`.

    Works for every end of a run. Damaged and missing files are named in `problems`; nothing in the
    directory makes it fail.
    """
    return build_report(load_material(root))


def build_report(run_data: RunData) -> CrashReport:
    """Combines all facts of `run_data` into a report, with secrets masked."""
    return mask_all(_build(run_data))


def _build(run_data: RunData) -> CrashReport:
    attempts = build_attempts(run_data)
    end = find_end(run_data, attempts)
    steps = run_data.steps.final
    shortfalls = find_shortfalls(
        run_data.events, steps.step, steps.loss, steps.risk, alarm=run_data.lines.alarm
    )
    incidents = _incidents(run_data, attempts, end, shortfalls)
    root = choose_root(incidents, end)
    blamed = blame(root, run_data) if root else None
    treatments = count_treatments(run_data.events)
    made = sum(treatments.values())
    cost = build_cost(run_data)
    decision = walk(run_data, root) if root else None
    return CrashReport(
        **_facts(run_data),
        end=end,
        title=build_title(end, root, made, shortfalls),
        verdict=build_verdict(end, root, run_data, attempts, made, incidents, shortfalls),
        first_lines=first_lines(
            end,
            run_data.events,
            run_data.root,
            last_step=int(run_data.steps.step[-1]) if len(steps) else None,
            shortfalls=shortfalls,
        ),
        root_cause=blamed.key if blamed else shortfalls[0].key if shortfalls else "none",
        root_cause_sentence=blamed.sentence if blamed else _nothing(run_data, shortfalls),
        overcome=root is not None
        and all(is_overcome(incident, run_data) for incident in incidents)
        and end in ("completed", "running"),
        resume_command=resume_command(run_data, end, root),
        next_steps=build_next_steps(end, root, run_data, decision, cost, shortfalls),
        setting=build_setting(end, root, run_data, decision),
        evidence=_evidence(run_data, root, attempts),
        evidence_against=root.evidence_against if root else (),
        incidents=incidents,
        shortfalls=shortfalls,
        explosion=_explosion(run_data, root),
        decision=decision,
        treatments=dict(treatments),
        attempts=attempts,
        cost=cost,
        memory=memory_notes(run_data) if root and root.key in MEMORY_KEYS else (),
        first_step=int(steps.step[0]) if len(steps) else None,
        last_step=int(steps.step[-1]) if len(steps) else None,
    )


def _facts(run_data: RunData) -> dict[str, Any]:
    """The fields of the report that are told as they were recorded."""
    layers = read_gradient_flow(run_data.root)
    return {
        "run_dir": str(run_data.root),
        "state": str(run_data.run.get("state") or "unknown"),
        "mistakes": find_mistakes(run_data.of(AlertEvent)),
        "timeline": timeline_of(run_data.events),
        "interventions": build_interventions(run_data),
        "rate_changes": find_rate_changes(run_data.steps),
        "ranks": build_ranks(run_data),
        "anomalies": build_anomalies(run_data),
        "anomaly_count": len(run_data.anomalies),
        "gradient_flow": layers.layers,
        "gradient_flow_step": layers.step,
        "unhealthy": layers.unhealthy,
        "alerts": summarise_alerts(run_data.of(AlertEvent)),
        "observed": sum_up(run_data.courses),
        "explain": run_data.explain,
        "stacks": run_data.stacks,
        "log_tail": run_data.log_tail,
        "environment": environment_of(run_data.run),
        "command": command_of(run_data.run),
        "final_loss": _final_loss(run_data),
        "problems": run_data.problems,
    }


def choose_root(incidents: tuple[Incident, ...], end: str) -> Incident | None:
    """Returns the first incident that the run did not get past, else the first one at all.

    In a run that was given up, its own trouble goes before a kill from outside. If everything was
    overcome, it is the first incident of a run that ended healthy, and the last of any other.
    """
    open_ = [incident for incident in incidents if not incident.survived]
    if open_:
        # Trouble from outside does not follow into a new process: if that failed by itself,
        # and in another way, its own failure ended the run.
        lasting = [incident for incident in open_ if incident.key not in FROM_OUTSIDE]
        return (lasting or open_)[0] if end == "gave_up" else open_[0]
    if not incidents:
        return None
    return incidents[0] if end in ("completed", "running") else incidents[-1]


def _incidents(
    run_data: RunData,
    attempts: tuple[AttemptFacts, ...],
    end: str,
    shortfalls: tuple[Shortfall, ...],
) -> tuple[Incident, ...]:
    incidents = find_incidents(run_data, attempts)
    if all(incident.survived for incident in incidents if incident.numerical):
        incidents += tuple(
            Incident(key=one.key, sentence=one.sentence, step=one.step, numerical=True)
            for one in shortfalls
            if one.key == HIGH_LOSS
        )
    if end == "supervisor_died":
        incidents = (*incidents, _supervisor_died(run_data))
    return incidents


def _supervisor_died(run_data: RunData) -> Incident:
    last = int(run_data.steps.step.max()) if len(run_data.steps) else None
    pid = run_data.run.get("pid")
    said = [f"run.json says {run_data.run.get('state') or 'nothing'}, and the journal has no end."]
    if pid is not None:
        said.append(f"Its process {pid} is gone.")
    step = last_checkpoint(run_data, stable=False)
    if step is not None:
        said.append(f"The newest checkpoint is that of step {step}.")
    where = f" after step {last}" if last is not None else ""
    return Incident(
        key="supervisor_died",
        sentence=f"The supervisor's own process was gone{where}: killed, or the machine went down.",
        step=last,
        evidence_for=tuple(said),
    )


def _nothing(run_data: RunData, shortfalls: tuple[Shortfall, ...]) -> str:
    if shortfalls:
        return shortfalls[0].sentence
    if would_have(run_data):
        return "Nothing broke for good; a policy that treats would have acted, see below."
    return "Nothing unusual was seen."


def _evidence(
    run_data: RunData, root: Incident | None, attempts: tuple[AttemptFacts, ...]
) -> tuple[str, ...]:
    if root is None:
        steps = run_data.steps
        if not len(steps):
            return ("No step was recorded.",)
        bad = int((steps.nonfinite_loss).sum())
        how = f"{bad} of them with a non-finite loss" if bad else "none with a NaN or infinite loss"
        said = [f"{len(steps)} steps were recorded, {how}."]
        risks = steps.risk[np.isfinite(steps.risk)]
        if len(risks):
            said.append(f"The highest predicted risk was {float(risks.max()):.2f}.")
        return tuple(said)
    said = list(root.evidence_for)
    cause = (run_data.explain or {}).get("root_cause")
    if cause:
        sure = show(100 * number((run_data.explain or {}).get("confidence")), 2)
        said.append(
            f"Controlled replay says: {str(cause).replace('_', ' ')} (confidence {sure} %)."
        )
    same = [
        attempt.number
        for attempt in attempts
        if attempt.last_step is not None
        and attempt.last_step == root.step
        and attempt.cause == root.key
    ]
    if len(same) > 1:
        numbers = ", ".join(str(number) for number in same)
        said.append(f"Attempts {numbers} ended in the same way at step {root.step}: not chance.")
    return tuple(dict.fromkeys(said))


def _explosion(run_data: RunData, root: Incident | None) -> Any:
    if root is None or root.key not in EXPLOSIVE_KEYS or root.step is None:
        return None
    rows = run_data.steps.of_attempt(root.attempt)
    until = root.step + 100
    later = rows.take((rows.step >= root.step) & rows.nonfinite_loss)
    if len(later):
        until = min(until, int(later.step[0]))
    found = find_explosion(rows, until=until)
    if found and found.onset_step > root.step + LATER_STEPS:  # the next one, higher than this
        found = find_explosion(rows, until=found.onset_step - 1)
    if found and (known := _known_cause(run_data, found)):
        cause, by = known
        found = replace(found, likely_causes=(cause,), known_by=by)
    elif found and root.key == "divergence":
        causes = (RATE_TOO_HIGH, *found.likely_causes)
        found = replace(found, likely_causes=tuple(dict.fromkeys(causes)))
    # A climb that was over long before the incident is unrelated.
    return found if found and found.peak_step >= root.step - 5 else None


def _known_cause(run_data: RunData, found: Explosion) -> tuple[str, str] | None:
    """Returns what has proved to be the cause, and by what; None where the shape alone speaks."""
    cause = str((run_data.explain or {}).get("root_cause") or "unknown")
    if cause != "unknown":
        return cause.replace("_", " "), "controlled replay"
    made = JournalTreatments().pick(run_data.events)
    since = {name for name, event in made if (event.step or 0) >= found.onset_step}
    for event in run_data.of(ActionEvent):
        has_helped = event.is_verdict and event.outcome is ActionOutcome.HELPED
        if has_helped and since == {event.name} and event.name in PROVED:
            return PROVED[event.name], f"{event.name} at step {event.applied_at}, which helped"
    return None


def _final_loss(run_data: RunData) -> float:
    losses = run_data.steps.final.loss
    known = [float(value) for value in losses[-20:] if math.isfinite(value)]
    return known[-1] if known else NAN


_SHOWN = (
    *("script", "function", "arguments", "resume_arguments", "policy", "config", "cwd"),
    *("host", "pid", "started_at", "ended_at", "exit_code", "crash_count"),
)


def command_of(run: Mapping[str, Any]) -> str:
    """Returns the command line that started the run; empty if run.json does not know it."""
    command = run.get("command") or run.get("argv") or ""
    if isinstance(command, (list, tuple)):
        command = shlex.join(mask_command([str(part) for part in command]))
    return mask_secrets(str(command))


def environment_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Returns what run.json says of host, times and versions; never environment variables."""
    found: dict[str, str] = {}
    for name in _SHOWN:
        value = run.get(name)
        if isinstance(value, (list, tuple)):
            value = shlex.join(mask_command([str(part) for part in value]))
        if value not in (None, "", {}) and not isinstance(value, Mapping):
            found[name] = mask_secrets(str(value))
    versions = run.get("versions")
    if isinstance(versions, Mapping):
        for name, version in versions.items():
            if not isinstance(version, (Mapping, list, tuple)) and version not in (None, ""):
                found[str(name)] = mask_secrets(str(version))
    return found
