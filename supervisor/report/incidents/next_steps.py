"""What a person does next after a run, and with which setting."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from supervisor.codes import ExitCause
from supervisor.events.run_events import HangDetected, WorkerExited
from supervisor.report.facts.crash_report import Cost, DecisionPath, Incident
from supervisor.report.facts.figures import duration, integer, lowered, show
from supervisor.report.facts.interventions import would_have
from supervisor.report.facts.run_data import RunData
from supervisor.report.incidents.evidence import last_checkpoint
from supervisor.report.incidents.remedies import IN_SCRIPT, asks_for_too_much
from supervisor.shortfalls import HIGH_LOSS, Shortfall
from supervisor.storage.run.rundir import RunDirectory

EXPLAINED = frozenset(
    {"nonfinite_loss", "nonfinite_gradient", "loss_spike", "divergence", "numerical",
     "loss_scale_collapse", "learning_rate", "exception", "nonfinite", HIGH_LOSS}
)  # fmt: skip
"""What `supervisor explain` can say more about than the report."""
MACHINES = (ExitCause.KILLED, ExitCause.PREEMPTED, ExitCause.INTERRUPTED, ExitCause.HANG)
"""Ends that set the interval between saves, see `supervisor/parent/restarts`."""
_SETTINGS = {
    "out_of_memory": "in your script: half the micro-batch, twice the accumulation",
    "host_out_of_memory": "in your script: fewer loader workers (num_workers)",
    "loss_scale_collapse": "in your script: BF16 in place of FP16",
    "learning_rate": "--set restart.careful_lr_factor=0.25",
    "divergence": "--set restart.careful_lr_factor=0.25",
    "loss_spike": "--set restart.careful_lr_factor=0.25",
}

_UNSEEN = (
    "If it was meant to train: a training step is the `step` of a `torch.optim.Optimizer`, and it "
    "is seen in the script's own process, not in processes that the script starts."
)


def resume_command(run_data: RunData, end: str, root: Incident | None) -> str:
    """Returns the command that continues the run, quoted for a shell.

    A run that ended in bad health goes back to its newest sound checkpoint: the command takes a
    completed run only with ``--from``.
    """
    command = f"supervisor resume {shlex.quote(str(run_data.root))}"
    step = _sound(run_data, root) if goes_back(end, root) else None
    return command if step is None else f"{command} --from {step}"


def goes_back(end: str, root: Incident | None) -> bool:
    """Whether a run completed, but in bad health."""
    return end == "completed" and root is not None and not root.survived


def _sound(run_data: RunData, root: Incident | None) -> int | None:
    """The newest checkpoint from before the trouble, a stable one if there is any."""
    before = root.step if root else None
    step = last_checkpoint(run_data, stable=True, before=before)
    return last_checkpoint(run_data, stable=False, before=before) if step is None else step


def build_next_steps(
    end: str,
    root: Incident | None,
    run_data: RunData,
    decision: DecisionPath | None,
    cost: Cost,
    shortfalls: Sequence[Shortfall] = (),
) -> tuple[str, ...]:
    """Returns what to do next, the most important first."""
    advice = tuple(dict.fromkeys(one.advice for one in shortfalls))
    step = last_checkpoint(run_data, stable=bool(root and root.numerical))
    explained = _explained(run_data)
    remedy = explained or (decision.remedy if decision else "")
    if end == "completed" and (root is None or root.survived):
        if root is None:
            return advice or _of_calm_run(run_data)
        nothing = () if advice else ("Nothing has to be done for this run.",)
        return *nothing, *advice, *_before_next(explained, decision)
    if end == "running":
        return (
            *advice,
            f"Watch it: supervisor watch {shlex.quote(str(run_data.root))}",
        )
    if end == "unknown":
        return ("Start the training with: supervisor run SCRIPT",)
    steps = [remedy, *advice] if remedy else list(advice)
    steps += _captured(run_data, root)
    if root is not None and root.key == "hang":
        more = f"--set watchdog.hang_timeout_s={_longer(run_data)}"
        steps.append(f"If that line was only slow and would have finished, give it time: {more}")
    if root is not None and root.key in EXPLAINED and run_data.explain is None:
        run = shlex.quote(str(run_data.root))
        steps.append(f"Find the cause by controlled replays: supervisor explain {run}")
    if end == "completed":
        return (*steps, *_back(run_data, root))
    saved = last_checkpoint(run_data, stable=False, before=root.step if root else None)
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
            f"{share} % of the time ({duration(cost.replayed_s)}) was work done twice"
            f"{_saved_more_often(run_data)}."
        )
    return tuple(steps)


ATTEMPT_SAVES = 6
"""Saves in an attempt of usual length: half an interval, a twelfth of it, is lost at its end."""


def _saved_more_often(run_data: RunData) -> str:
    """Which setting makes a failure cost less in this run; empty where nothing is to be set."""
    settings = run_data.config.get("checkpoint")
    settings = settings if isinstance(settings, dict) else {}
    for name in ("every_steps", "every_s"):
        if settings.get(name) is not None:
            return (
                f": --set checkpoint.{name}={settings[name]} is too long for it, and with "
                f"--set checkpoint.{name}=null the interval follows the failures seen"
            )
    lengths = [
        float(rows.time[-1] - rows.time[0])
        for number in np.unique(run_data.steps.attempt)[:-1]
        if len(rows := run_data.steps.of_attempt(int(number))) > 1
    ]
    if not lengths:
        return ""
    if any(event.cause in MACHINES for event in run_data.of(WorkerExited)):
        return ": from its second attempt on it saves as often as its failures ask for"
    every = max(1, round(float(np.median(lengths)) / ATTEMPT_SAVES))
    return f": save more often, with --set checkpoint.every_s={every}"


def _of_calm_run(run_data: RunData) -> tuple[str, ...]:
    if not len(run_data.steps):
        return (_UNSEEN,)
    if would_have(run_data):
        run = shlex.quote(str(run_data.root))
        return (
            "Look at the loss below, and at what a policy that treats would have done.",
            f"To see what such a policy would say of it: supervisor backtest {run}",
            "Next time, let it treat: leave out --policy observe_only.",
        )
    return ("Nothing: the run needs no help.",)


def _back(run_data: RunData, root: Incident | None) -> list[str]:
    """What is left of a run that ended in bad health, and how to go on from there."""
    step = _sound(run_data, root)
    if step is None:
        told = [
            "The last weights are of no use, and no checkpoint from before the trouble is left: "
            "start a new run once the cause is fixed."
        ]
    else:
        folder = RunDirectory(run_data.root).checkpoints / f"step_{step:08d}"
        told = [
            f"The last weights are of no use; those of step {step} are from before the trouble: "
            f"{folder}. The command trains on from there and removes what came after."
        ]
    if run_data.policy.get("observe_only"):
        treat = "leave out --policy observe_only"
        if step is not None:
            treat = "add --set policy.observe_only=false"
        told.append(
            "It was only watched: what a treating policy would have done is shown below; to let "
            f"it treat, {treat}."
        )
    return told


def _longer(run_data: RunData) -> int:
    """Seconds of silence that a slow step may need: ten times what was not enough."""
    limits = [event.limit_s for event in run_data.of(HangDetected)]
    known = [limit for limit in limits if math.isfinite(limit)]
    return max(600, round(10 * max(known, default=0.0)))


def _captured(run_data: RunData, root: Incident | None) -> list[str]:
    """Where the batch of the first bad step is kept; nothing if it was not captured."""
    if root is None or not root.numerical:
        return []
    kept = [
        str(line["data_dir"])
        for line in run_data.anomalies
        if line.get("data_dir") and integer(line.get("step")) == root.step
    ]
    if not kept:
        return []
    run = shlex.quote(str(run_data.root))
    return [
        f"The batch of step {root.step} is kept in anomalies/data/{Path(kept[0]).name}; "
        f"to compute it again: supervisor analyze {run} --step {root.step}"
    ]


def _before_next(explained: str, decision: DecisionPath | None) -> list[str]:
    """What to change for the next run, if this one need not be resumed."""
    remedy = explained
    if not remedy and decision:
        remedy = decision.before_next or decision.remedy
    return [f"Before the next one: {lowered(remedy)}"] if remedy else []


def _explained(run_data: RunData) -> str:
    """What controlled replay found; empty if it was not made or found nothing."""
    found = run_data.explain or {}
    if not found.get("summary") or found.get("root_cause") in (None, "unknown"):
        return ""
    cause = str(found["root_cause"]).replace("_", " ")
    because, _, advice = str(found["summary"]).partition(". ")
    return f"Controlled replay names the {cause}: {lowered(advice or because)}"


def build_setting(
    end: str, root: Incident | None, run_data: RunData, decision: DecisionPath | None
) -> str:
    """Returns the one setting to change; empty when none would help."""
    if root is None or end == "running" or root.key in ("interrupted", "preempted"):
        return ""
    if end == "completed" and root.survived:
        return ""
    if decision and decision.setting.startswith(IN_SCRIPT):
        return decision.setting
    if end == "completed":
        return ""
    if asks_for_too_much(run_data, root):
        return ""
    if root.key in _SETTINGS:
        return _SETTINGS[root.key]
    if decision and decision.setting:
        return f"--set {decision.setting}"
    return ""
