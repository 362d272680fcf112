"""The first lines of a report: what happened in two sentences, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path

from supervisor.report.crash_report import Attempt, Cost, DecisionPath, Incident, Intervention
from supervisor.report.decision_tree import IN_SCRIPT
from supervisor.report.ending import ends_nonfinite
from supervisor.report.evidence import last_checkpoint, rate_jump
from supervisor.report.figures import count, duration, integer, show
from supervisor.report.interventions import is_treatment
from supervisor.report.material import Material
from supervisor.storage.rundir import RunDirectory

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
EXPLAINED = frozenset(
    {"nonfinite_loss", "nonfinite_gradient", "loss_spike", "divergence", "numerical",
     "loss_scale_collapse", "learning_rate", "exception", "nonfinite"}
)  # fmt: skip
"""What `supervisor explain` can say more about than the report."""
_SETTINGS = {
    "out_of_memory": "in your script: half the micro-batch, twice the accumulation",
    "host_out_of_memory": "in your script: fewer loader workers (num_workers)",
    "hang": "--set watchdog.hang_timeout_s=600 if the step was only slow",
    "loss_scale_collapse": "in your script: BF16 in place of FP16",
    "learning_rate": "--set restart.careful_lr_factor=0.25",
    "divergence": "--set restart.careful_lr_factor=0.25",
    "loss_spike": "--set restart.careful_lr_factor=0.5",
}

_UNSEEN = (
    "If it was meant to train: what is seen is the `step` of a `torch.optim.Optimizer` in the "
    "script's own process, not in processes that it starts itself."
)


def resume_command(material: Material) -> str:
    return f"supervisor resume {shlex.quote(str(material.root))}"


def build_title(end: str, root: Incident | None) -> str:
    """Returns the end in a few words."""
    if end == "completed" and root is not None and not root.survived:
        return "Completed, not healthy"
    return TITLES[end]


def build_verdict(
    end: str,
    root: Incident | None,
    material: Material,
    attempts: tuple[Attempt, ...],
    interventions: tuple[Intervention, ...],
    incidents: tuple[Incident, ...] = (),
) -> str:
    """Returns two sentences: how the run ended, and why or what was overcome."""
    how = _how(end, material, attempts, interventions)
    if (
        end == "completed"
        and not ends_nonfinite(material)
        and any(not incident.survived for incident in incidents)
    ):
        how = f"{how[:-1]}, but not in health."
    return f"{how} {_why(end, root, material, incidents)}".strip()


def _how(
    end: str,
    material: Material,
    attempts: tuple[Attempt, ...],
    interventions: tuple[Intervention, ...],
) -> str:
    steps = material.steps
    last = f"step {int(steps.step.max())}" if len(steps) else ""
    treatments = sum(is_treatment(item) and item.name != "restart" for item in interventions)
    restarts = max(0, len(attempts) - 1)
    help_ = f"after {count(restarts, 'restart')} and {count(treatments, 'treatment')}"
    if not restarts and not treatments:
        help_ = "without a restart or a treatment"
    if end == "completed" and not last:
        return f"The script ran to its end, {help_}, but no step of a training was seen."
    if end == "completed":
        sick = ", but its last loss is not finite" if ends_nonfinite(material) else ""
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
        return f"The supervisor itself ended without a word{where}; the run can be continued."
    return "Nothing was recorded: the directory holds neither steps nor a journal."


def _why(
    end: str, root: Incident | None, material: Material, incidents: tuple[Incident, ...]
) -> str:
    if root is None:
        alerts = len(material.of_kind("alert"))
        if end in ("completed", "running") and alerts:
            said = count(alerts, "alert")
            return f"No trouble came that needed help; the timeline holds {said} of little weight."
        return {
            "completed": "Nothing out of the ordinary was seen.",
            "running": "Nothing out of the ordinary was seen so far.",
            "unknown": "Either the run never started, or this is not its directory.",
            "supervisor_died": "Until then nothing out of the ordinary was seen.",
        }.get(end, "No cause was recorded.")
    sentence = root.sentence
    if root.survived:
        told = [_told(one, material) for one in incidents[:TOLD]] or [_lower(sentence)]
        more = f"; and {len(incidents) - TOLD} more" if len(incidents) > TOLD else ""
        return f"What happened on the way was overcome: {'; '.join(told).rstrip('.')}{more}."
    if root.key in ("interrupted", "preempted", "supervisor_died"):
        step = last_checkpoint(material, stable=False)
        if step is None:
            return "No checkpoint is known: it would begin anew."
        return f"Its newest checkpoint is that of step {step}."
    return f"The cause: {_told(root, material)}."


def _told(incident: Incident, material: Material) -> str:
    """The sentence of an incident, with a jump of the learning rate before it; no full stop."""
    told = _lower(incident.sentence).rstrip(".")
    if not incident.numerical:
        return told
    jump = rate_jump(material, before=incident.step or 0, attempt=incident.attempt)
    if jump is None:
        return told
    rates = f"went from {show(jump[1])} to {show(jump[2])} at step {jump[0]}"
    return f"the learning rate {rates}; {told}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def build_next_steps(
    end: str,
    root: Incident | None,
    material: Material,
    decision: DecisionPath | None,
    cost: Cost,
) -> tuple[str, ...]:
    """Returns what to do next, the most important first."""
    step = last_checkpoint(material, stable=bool(root and root.numerical))
    remedy = _explained(material) or (decision.remedy if decision else "")
    if end == "completed" and (root is None or root.survived):
        if root is None:
            return ("Nothing: the run needs no help." if len(material.steps) else _UNSEEN,)
        return (
            "Nothing has to be done for this run.",
            *(
                (f"Before the next one: {_lower(remedy).replace(', then resume.', '.')}",)
                if remedy
                else ()
            ),
        )
    if end == "running":
        return (f"Watch it: supervisor watch {shlex.quote(str(material.root))}",)
    if end == "unknown":
        return ("Start the training with: supervisor run SCRIPT",)
    steps = [remedy] if remedy else []
    steps += _captured(material, root)
    if root is not None and root.key in EXPLAINED and material.explain is None:
        run = shlex.quote(str(material.root))
        steps.append(f"Let the cause be found by controlled replays: supervisor explain {run}")
    if end == "completed":
        kept = "no stable checkpoint from before the trouble was kept"
        step = last_checkpoint(material, stable=True, before=root.step if root else None)
        if step is not None:
            folder = RunDirectory(material.root).checkpoints / f"step_{step:08d}"
            kept = f"those of step {step} are sound: {folder}"
        steps.append(f"The last weights are of no use; {kept}.")
        if material.policy.get("observe_only"):
            steps.append(
                "It was only watched: what a policy that treats would have done stands below."
            )
        return tuple(steps)
    saved = last_checkpoint(material, stable=False, before=root.step if root else None)
    if step is None and saved is not None:
        steps.append(
            "No checkpoint had stayed healthy for long enough to count as stable: the command "
            f"starts from the beginning; with --from {saved} it continues from before the trouble."
        )
    elif step is not None:
        steps.append(f"The command continues from the checkpoint of step {step}.")
    else:
        steps.append("No checkpoint is known: the command starts the training from its beginning.")
    if cost.replayed_s > 0.2 * max(cost.wall_s, 1e-9):
        share = show(100 * cost.replayed_s / cost.wall_s, 2)
        steps.append(
            f"{share} % of the time ({duration(cost.replayed_s)}) was work done twice:"
            " save more often, with --set checkpoint.every_s=60."
        )
    return tuple(steps)


def _captured(material: Material, root: Incident | None) -> list[str]:
    """Where the batch of the first bad step is kept; nothing if it was not captured."""
    if root is None or not root.numerical:
        return []
    kept = [
        str(line["data_dir"])
        for line in material.anomalies
        if line.get("data_dir") and integer(line.get("step")) == root.step
    ]
    if not kept:
        return []
    run = shlex.quote(str(material.root))
    return [
        f"The batch of step {root.step} is kept in anomalies/data/{Path(kept[0]).name}; "
        f"computed again with its figures by: supervisor analyze {run} --step {root.step}"
    ]


def _explained(material: Material) -> str:
    """What controlled replay found; empty if it was not made or found nothing."""
    found = material.explain or {}
    if not found.get("summary") or found.get("root_cause") in (None, "unknown"):
        return ""
    cause = str(found["root_cause"]).replace("_", " ")
    because, _, advice = str(found["summary"]).partition(". ")
    return f"Controlled replay names the {cause}: {_lower(advice or because)}"


def build_setting(end: str, root: Incident | None, decision: DecisionPath | None) -> str:
    """Returns the one setting to change; empty when none would help."""
    if root is None or end == "running" or root.key in ("interrupted", "preempted"):
        return ""
    if end == "completed" and root.survived:
        return ""
    if decision and decision.setting.startswith(IN_SCRIPT):
        return decision.setting
    if end == "completed":
        return ""
    if root.key in _SETTINGS:
        return _SETTINGS[root.key]
    if decision and decision.setting:
        return f"--set {decision.setting}"
    return ""
