"""What to do first about a piece of trouble, and the one setting to change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from supervisor.codes import ExitSign
from supervisor.events.run_events import WorkerExited
from supervisor.events.step_events import RollbackEvent
from supervisor.report.facts.crash_report import Branch, DecisionPath, Incident
from supervisor.report.facts.figures import integer, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.incidents.evidence import (
    LARGE,
    WINDOW,
    last_checkpoint,
    rate_jump,
    rate_rise,
    samples_behind,
)
from supervisor.report.incidents.process_incident import DISK_REFUSALS

RISE_EXPLAINS = frozenset({"loss_spike", "divergence"})
"""Trouble that a recent rise of the learning rate explains, unless it passed. NaN is not among it:
warm-ups rise too, and NaN has other causes more often."""
FIRST = 50
"""Steps in which the initialisation still matters; the detectors' windows are as long."""
FIRST_STEPS = "Look at the batch of that step, then at the initialisation: nothing grew before it."
ONE_BATCH = "Look at the batch of that step: nothing had grown before it."
PASSED_BATCH = (
    "Look at the batch of that step: one batch failed, and the steps around it were healthy."
)
NEXT_STEPS = 3
"""A bad batch costs one step, whose update is left out; bad weights or a bad optimizer state show
again in the very next steps."""
IN_SCRIPT = "in your script:"
"""Begins a setting that is the script's, not ours."""
_PROCESS_REMEDY = {
    "killed": "Find out who sent the signal (scheduler, memory killer, a colleague)",
    "host_out_of_memory": "Lower the number of loader workers or what they hold",
    "exception": "Fix the exception that is shown below",
    "supervisor_died": "Find out why the supervisor ended (reboot, kill -9)",
}
"""What is to be done before a resume."""
_LAST_WORD = {
    "out_of_memory": "Halve the micro-batch and accumulate more, or checkpoint activations",
    "hang": "Look at that line, and at the stacks below: they show what the script was waiting for",
    "user_error": "Fix the script or its arguments: another attempt would fail in the same way",
    "interrupted": "There is nothing to fix: resume when you are ready",
    "preempted": "There is nothing to fix: resume when the machine is back",
}
REMEDY_OF_KIND = {
    "corruption": ("Test the memory and the device of this machine before you trust it.", ""),
    "collapse": (
        "Anneal the KL term more slowly, use free bits, or weaken the decoder.",
        f"{IN_SCRIPT} the weight of the KL term",
    ),
    "dead_units": (
        "Lower the learning rate, or take an activation that does not die (GELU, leaky ReLU).",
        "restart.careful_lr_factor=0.25",
    ),
    "reward_fall": (
        "Go on from a checkpoint of before the fall, with a smaller rate or a shorter step.",
        "",
    ),
    "loss_scale_collapse": (
        "Use BF16, or run the part that overflows in FP32.",
        f"{IN_SCRIPT} BF16 in place of FP16",
    ),
    "plateau": (
        "Look at the learning rate and at the data: the training has stalled, nothing is broken.",
        "",
    ),
    "resources": (
        "Look at what grows in memory, and at what slows the steps down.",
        "",
    ),
}
"""For kinds of trouble that say more than the facts around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericalFacts:
    """What was found out about numerical trouble on the way through the tree.

    Attributes:
        early: it came within the first steps of the run.
        mixed: a loss scale was seen.
        large: gradients had grown large before it.
        rise: first and last learning rate of the 20 steps before it, if that rose a lot.
    """

    early: bool
    mixed: bool
    large: bool
    rise: tuple[float, float] | None


def numerical_remedy(
    run_data: RunData, incident: Incident, facts: NumericalFacts
) -> tuple[str, str]:
    """Returns the remedy and the setting; trouble that a run got past needs no setting."""
    rise = facts.rise
    if rise is not None and incident.key in RISE_EXPLAINS and not incident.survived:
        return (
            f"End the rise of the learning rate earlier: it went from {show(rise[0])} to "
            f"{show(rise[1])} within the 20 steps before.",
            f"{IN_SCRIPT} the warm-up of the learning rate",
        )
    if incident.key == "divergence" and not facts.large and not facts.mixed:
        return (
            "Lower the learning rate, to a third at first: the loss climbed and did not stop.",
            f"{IN_SCRIPT} a third of the learning rate",
        )
    if incident.survived and incident.key != "divergence":
        return _after_it_passed(run_data, incident), ""
    if _came_back(run_data, incident):
        return (
            f"Look at what the script computes at step {incident.step}, in its data and in its "
            "loss: the trouble came back there when a new attempt began from older weights.",
            "",
        )
    return _by_facts(facts, incident.step or 0)


def _by_facts(facts: NumericalFacts, step: int) -> tuple[str, str]:
    if facts.early and facts.large:
        return (
            "Lengthen the warm-up or halve the learning rate: early gradients were large.",
            "restart.careful_lr_factor=0.25",
        )
    if facts.large:
        return (
            "Clip the gradient norm near its usual level and halve the learning rate.",
            "restart.careful_lr_factor=0.25",
        )
    if facts.mixed:
        return (
            "Run the sensitive part (attention, normalisation, loss) in FP32, or use BF16:"
            " values left the range of FP16 without large gradients.",
            f"{IN_SCRIPT} BF16 in place of FP16, or FP32 for the sensitive part",
        )
    if step < FIRST:
        return FIRST_STEPS, ""
    return ONE_BATCH, ""


def process_remedy(run_data: RunData, incident: Incident) -> tuple[str, bool]:
    """Returns what helps after the end of a process, without a full stop, and whether the run is
    resumed then."""
    attempts = {
        event.attempt
        for event in run_data.of(WorkerExited)
        if event.cause and event.cause.value == incident.key and event.last_step == incident.step
    }
    if incident.sign is ExitSign.FAILING_DEVICE:
        return "Leave that device out (CUDA_VISIBLE_DEVICES), or have it tested", True
    if incident.key == "killed" and len(attempts) > 1:
        text = (
            f"Look at what the script does after step {incident.step}: it was killed there "
            f"{len(attempts)} times, which is not chance (the kernel's log, `dmesg`, says more)"
        )
        return text, False
    if asks_for_too_much(run_data, incident):
        return "Ask for less memory at the line above", True
    if incident.sign is ExitSign.LOADER_DIED:
        text = (
            "A process that loads data died: look at how the next samples are loaded (memory, "
            "a native library); with num_workers=0 it shows its own error"
        )
        return text, False
    if incident.sign in DISK_REFUSALS:
        return "Free space on the disk (or raise the quota)", True
    if incident.sign is ExitSign.OWN_SIGNAL:
        return "Find what in your script sends this signal (os.kill, os.abort)", True
    if incident.key in _LAST_WORD:
        return _LAST_WORD[incident.key], False
    return _PROCESS_REMEDY.get(incident.key, "Read the end of the log"), True


def asks_for_too_much(run_data: RunData, incident: Incident) -> bool:
    """Whether the script's own request failed; not whether one of its processes was killed."""
    return incident.key == "host_out_of_memory" and any(
        integer(note.get("attempt")) == incident.attempt and note.get("traceback")
        for note in run_data.exit_notes
    )


def _after_it_passed(run_data: RunData, incident: Incident) -> str:
    """What to learn from trouble that a healthy run got past."""
    step, attempt = incident.step or 0, incident.attempt
    went_back = any(
        0 < (event.step or 0) - step <= NEXT_STEPS and event.attempt == attempt
        for event in run_data.of(RollbackEvent)
    )
    if went_back:
        return (
            "Look for what changed the weights or the optimizer's state (learning rate, the "
            "script's own code, the hardware): the next batches failed too, until older "
            "weights were put back, so it was not one batch."
        )
    return PASSED_BATCH


def _came_back(run_data: RunData, incident: Incident) -> bool:
    """Whether the same step was not finite in another attempt, too."""
    steps = run_data.steps
    same = steps.take((steps.step == incident.step) & (steps.attempt != incident.attempt))
    return incident.key == "nonfinite_loss" and bool(same.nonfinite_loss.any())


EARLY_STEPS = 1000


def _yes_no(question: str, answer: bool | None, fact: str) -> Branch:
    word = "unknown" if answer is None else "yes" if answer else "no"
    return Branch(question=question, answers=("yes", "no"), answer=word, fact=fact)


def walk(run_data: RunData, incident: Incident) -> DecisionPath:
    """Follows the branches that the facts about `incident` choose; each answer names its fact."""
    process = Branch(
        question="Was it the numbers, or the process?",
        answers=("numbers", "process"),
        answer="numbers" if incident.numerical else "process",
        fact=incident.sentence,
    )
    checkpoint = _checkpoint(run_data, stable=incident.numerical)
    if not incident.numerical:
        text, then_resume = process_remedy(run_data, incident)
        return DecisionPath(
            branches=(process, checkpoint),
            remedy=f"{text}, then resume." if then_resume else f"{text}.",
            before_next=f"{text}.",
        )
    samples = samples_behind(run_data, incident)
    if samples:
        found_in = f"NaN or infinity was found in {samples}."
        named = _yes_no("Was it in the data?", True, found_in)
        return DecisionPath(
            branches=(process, named, checkpoint),
            remedy=f"Fix or remove {samples} in your data: it holds NaN or infinity.",
        )
    jump = rate_jump(run_data, before=incident.step or 0, attempt=incident.attempt)
    rise = rate_rise(run_data, before=incident.step or 0, attempt=incident.attempt)
    rate = _rate(jump, rise)
    if jump is not None:
        return DecisionPath(
            branches=(process, rate, checkpoint),
            remedy=f"Fix the schedule of the learning rate: it went from {show(jump[1])} to "
            f"{show(jump[2])} at step {jump[0]}.",
            setting=f"{IN_SCRIPT} the learning rate from step {jump[0]} on",
        )
    if incident.key in REMEDY_OF_KIND:
        remedy, setting = REMEDY_OF_KIND[incident.key]
        known = (process, rate, checkpoint)
        return DecisionPath(branches=known, remedy=remedy, setting=setting)
    early = _early(incident)
    mixed = _mixed_precision(run_data)
    large = _large_gradients(run_data, incident)
    branches = (process, rate, early, mixed, large, checkpoint)
    facts = NumericalFacts(
        early=early.answer == "yes",
        mixed=mixed.answer == "yes",
        large=large.answer == "yes",
        rise=rise,
    )
    remedy, setting = numerical_remedy(run_data, incident, facts)
    if incident.survived:
        went_on = "The training went on past it, with finite numbers."
        passed = _yes_no("Did the training get past it?", True, went_on)
        return DecisionPath(branches=(process, passed, rate, early, mixed, large), remedy=remedy)
    return DecisionPath(branches=branches, remedy=remedy, setting=setting)


def _rate(jump: tuple[int, float, float] | None, rise: tuple[float, float] | None = None) -> Branch:
    fact = "The learning rate went on as before."
    if rise is not None:
        fact = f"Not in one step; it rose from {show(rise[0])} to {show(rise[1])} within 20 steps."
    if jump is not None:
        fact = f"At step {jump[0]} it went from {show(jump[1])} to {show(jump[2])}."
    return _yes_no("Did the learning rate jump before it?", jump is not None, fact)


def _early(incident: Incident) -> Branch:
    question = f"Within the first {EARLY_STEPS} steps?"
    if incident.step is None:
        return _yes_no(question, None, "The step is not known.")
    fact = f"The first sign was at step {incident.step}."
    return _yes_no(question, incident.step < EARLY_STEPS, fact)


def _mixed_precision(run_data: RunData) -> Branch:
    scales = run_data.steps.loss_scale[np.isfinite(run_data.steps.loss_scale)]
    fact = "No GradScaler was seen (BF16 without a scaler looks the same)."
    if len(scales):
        fact = f"A GradScaler was at work, last with the scale {show(float(scales[-1]))}."
    return _yes_no("FP16 with a loss scale?", len(scales) > 0, fact)


def _large_gradients(run_data: RunData, incident: Incident) -> Branch:
    rows = run_data.steps.of_attempt(incident.attempt)
    before = rows.take(rows.step < (incident.step or 0)).grad_norm
    norms = before[np.isfinite(before)][-WINDOW:]
    question = "Large gradients before it?"
    if len(norms) < 5:
        return _yes_no(question, None, "Too few gradient norms were recorded before it.")
    median, top = float(np.median(norms)), float(norms[-10:].max())
    fact = f"Largest of the 10 steps before: {show(top)}, median {show(median)}."
    return _yes_no(question, top > LARGE * median, fact)


def _checkpoint(run_data: RunData, *, stable: bool) -> Branch:
    step = last_checkpoint(run_data, stable=stable)
    word = "stable " if stable else ""
    fact = f"No {word}checkpoint is known."
    if step is not None:
        fact = f"The newest {word}checkpoint is that of step {step}."
    return _yes_no(f"Is there a {word}checkpoint?", step is not None, fact)
