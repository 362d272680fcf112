"""From a few facts to a first remedy (REQUIREMENTS K4)."""

from __future__ import annotations

import numpy as np

from supervisor.report.bad_samples import samples_behind
from supervisor.report.crash_report import Branch, DecisionPath, Incident
from supervisor.report.evidence import LARGE, WINDOW, last_checkpoint, rate_jump, rate_rise
from supervisor.report.figures import integer, show
from supervisor.report.material import Material
from supervisor.report.process_incident import disk_refusal

EARLY_STEPS = 1000
RISE_EXPLAINS = frozenset({"loss_spike", "divergence"})
"""What a learning rate that has just risen is held for; NaN has other causes more often."""
FIRST = 50
FIRST_STEPS = "Look at the batch of that step, then at the initialisation: nothing grew before it."
ONE_BATCH = "Look at the batch of that step: nothing had grown before it."
NEXT_STEPS = 3
"""The update of a bad batch is left out and costs one step; what is bad in the weights or the
optimizer shows again at the very next ones."""
YES_NO = ("yes", "no")
IN_SCRIPT = "in your script:"
"""How a setting begins that is none of ours."""
SMALLER_REQUEST = "Make what is asked for at the line above smaller, then resume."
_PROCESS_REMEDY = {
    "killed": "Find out who sent the signal (scheduler, memory killer, a colleague), then resume.",
    "host_out_of_memory": "Lower the number of loader workers or what they hold, then resume.",
    "out_of_memory": "Halve the micro-batch and accumulate more, or checkpoint activations.",
    "hang": "Look at that line, and at the stacks below: they show what the script waited for.",
    "exception": "Mend the exception that is shown below, then resume.",
    "user_error": "Mend the script: another attempt would fail in the same way.",
    "interrupted": "Nothing is to be mended: resume when you are ready.",
    "preempted": "Nothing is to be mended: resume when the machine is back.",
    "supervisor_died": "Find out why the supervisor ended (reboot, kill -9), then resume.",
}

_NUMERICAL_REMEDY = {
    "collapse": (
        "Anneal the KL term more slowly, use free bits, or weaken the decoder.",
        f"{IN_SCRIPT} the weight of the KL term",
    ),
    "dead_units": (
        "Lower the learning rate, or take an activation that does not die (GELU, leaky ReLU).",
        "restart.careful_lr_factor=0.25",
    ),
    "loss_scale_collapse": (
        "Use BF16, or run the part that overflows in FP32.",
        f"{IN_SCRIPT} BF16 in place of FP16",
    ),
    "plateau": (
        "Look at the learning rate and at the data: the training stands still, it is not broken.",
        "",
    ),
    "resources": (
        "Look at what grows in memory, and at what slows the steps down.",
        "",
    ),
}
"""Where the kind of the trouble says more than the facts around it."""


def walk(material: Material, incident: Incident) -> DecisionPath:
    """Takes the branch that the facts about `incident` give; every answer carries its fact."""
    process = Branch(
        question="Was it the numbers, or the process?",
        answers=("numbers", "process"),
        answer="numbers" if incident.numerical else "process",
        fact=incident.sentence,
    )
    checkpoint = _checkpoint(material, stable=incident.numerical)
    if not incident.numerical:
        remedy = _process_remedy(material, incident)
        return DecisionPath(branches=(process, checkpoint), remedy=remedy)
    samples = samples_behind(material, incident)
    if samples:
        named = Branch(
            question="Was it in the data?",
            answers=YES_NO,
            answer="yes",
            fact=f"NaN or infinity was found in {samples}.",
        )
        return DecisionPath(
            branches=(process, named, checkpoint),
            remedy=f"Mend or remove {samples} in your data: NaN or infinity stands there.",
        )
    jump = rate_jump(material, before=incident.step or 0, attempt=incident.attempt)
    rise = rate_rise(material, before=incident.step or 0, attempt=incident.attempt)
    rate = _rate(jump, rise)
    if jump is not None:
        return DecisionPath(
            branches=(process, rate, checkpoint),
            remedy=f"Mend the schedule of the learning rate: it went from {show(jump[1])} to "
            f"{show(jump[2])} at step {jump[0]}.",
            setting=f"{IN_SCRIPT} the learning rate from step {jump[0]} on",
        )
    if incident.key in _NUMERICAL_REMEDY:
        remedy, setting = _NUMERICAL_REMEDY[incident.key]
        known = (process, rate, checkpoint)
        return DecisionPath(branches=known, remedy=remedy, setting=setting)
    early = _early(incident)
    mixed = _mixed_precision(material)
    large = _large_gradients(material, incident)
    branches = (process, rate, early, mixed, large, checkpoint)
    remedy, setting = _remedy(early.answer, mixed.answer, large.answer)
    if remedy == FIRST_STEPS and (incident.step or 0) >= FIRST:
        remedy = ONE_BATCH
    if incident.key == "divergence" and large.answer != "yes" and mixed.answer != "yes":
        remedy = "Lower the learning rate, to a third for a try: the loss climbed and did not stop."
        setting = f"{IN_SCRIPT} a third of the learning rate"
    if rise is not None and incident.key in RISE_EXPLAINS:
        remedy = (
            f"End the rise of the learning rate earlier: it went from {show(rise[0])} to "
            f"{show(rise[1])} within the 20 steps before."
        )
        setting = f"{IN_SCRIPT} the warm-up of the learning rate"
    elif _came_back(material, incident):
        remedy = (
            f"Look at what the script computes at step {incident.step}, in its data and in its "
            "loss: it came back there when a new attempt began from older weights."
        )
        setting = ""
    if incident.survived:
        passed = Branch(
            question="Did it pass?",
            answers=YES_NO,
            answer="yes",
            fact="The training went on past it, with finite numbers.",
        )
        if incident.key != "divergence":
            remedy = _after_it_passed(material, incident)
        return DecisionPath(branches=(process, passed, rate, early, mixed, large), remedy=remedy)
    return DecisionPath(branches=branches, remedy=remedy, setting=setting)


def _process_remedy(material: Material, incident: Incident) -> str:
    attempts = {
        integer(event.get("attempt"))
        for event in material.of_kind("worker_exited")
        if event.get("cause") == incident.key and integer(event.get("last_step")) == incident.step
    }
    if incident.key == "killed" and len(attempts) > 1:
        return (
            f"Look at what the script does after step {incident.step}: it was killed there "
            f"{len(attempts)} times, which is no chance (the kernel's log, `dmesg`, says more)."
        )
    if incident.key == "host_out_of_memory" and _raised_it(material, incident):
        return SMALLER_REQUEST
    if disk_refusal(material, incident.attempt or 0, incident.evidence_for):
        return "Make room on the disk (or the quota), then resume."
    return _PROCESS_REMEDY.get(incident.key, "Read the end of the log, then resume.")


def _raised_it(material: Material, incident: Incident) -> bool:
    """Whether the script's own request failed, and not a process of its that was killed."""
    return any(
        integer(note.get("attempt")) == incident.attempt and note.get("traceback")
        for note in material.exit_notes
    )


def _after_it_passed(material: Material, incident: Incident) -> str:
    """What a healthy run has to learn from trouble that it got past."""
    step, attempt = incident.step or 0, incident.attempt
    went_back = any(
        0 < (integer(event.get("step")) or 0) - step <= NEXT_STEPS
        and integer(event.get("attempt")) == attempt
        for event in material.of_kind("rollback")
    )
    if went_back:
        return (
            "Look for what changed the weights or the optimizer's state (learning rate, the "
            "script's own code, the hardware): it was bad with the next batches, too, until older "
            "weights were put back, so it was not one batch."
        )
    return "Look at the batch of that step: one batch broke what was healthy around it."


def _came_back(material: Material, incident: Incident) -> bool:
    """Whether the same step was not finite in another attempt, too."""
    steps = material.steps
    same = steps.take((steps.step == incident.step) & (steps.attempt != incident.attempt))
    return incident.key == "nonfinite_loss" and bool(same.nonfinite_loss.any())


def _remedy(early: str, mixed: str, large: str) -> tuple[str, str]:
    if early == "yes" and large == "yes":
        return (
            "Lengthen the warm-up or halve the learning rate: early gradients were large.",
            "restart.careful_lr_factor=0.25",
        )
    if large == "yes":
        return (
            "Clip the gradient norm near its usual level and halve the learning rate.",
            "restart.careful_lr_factor=0.25",
        )
    if mixed == "yes":
        return (
            "Run the sensitive part (attention, normalisation, loss) in FP32, or use BF16:"
            " values left the range of FP16 without large gradients.",
            f"{IN_SCRIPT} BF16 in place of FP16, or FP32 for the sensitive part",
        )
    if early == "yes":
        return FIRST_STEPS, ""
    return ONE_BATCH, ""


def _rate(jump: tuple[int, float, float] | None, rise: tuple[float, float] | None = None) -> Branch:
    fact = "The learning rate went on as before."
    if rise is not None:
        fact = f"Not in one step; it rose from {show(rise[0])} to {show(rise[1])} within 20 steps."
    if jump is not None:
        fact = f"At step {jump[0]} it went from {show(jump[1])} to {show(jump[2])}."
    return Branch(
        question="Did the learning rate jump before it?",
        answers=YES_NO,
        answer="no" if jump is None else "yes",
        fact=fact,
    )


def _early(incident: Incident) -> Branch:
    if incident.step is None:
        answer, fact = "unknown", "The step is not known."
    else:
        answer = "yes" if incident.step < EARLY_STEPS else "no"
        fact = f"The first sign was at step {incident.step}."
    return Branch(
        question=f"Within the first {EARLY_STEPS} steps?", answers=YES_NO, answer=answer, fact=fact
    )


def _mixed_precision(material: Material) -> Branch:
    scales = material.steps.loss_scale[np.isfinite(material.steps.loss_scale)]
    if len(scales):
        fact = f"A GradScaler was at work, last with the scale {show(float(scales[-1]))}."
        answer = "yes"
    else:
        fact, answer = "No GradScaler was seen (BF16 without a scaler cannot be told apart).", "no"
    return Branch(question="FP16 with a loss scale?", answers=YES_NO, answer=answer, fact=fact)


def _large_gradients(material: Material, incident: Incident) -> Branch:
    rows = material.steps.of_attempt(incident.attempt)
    before = rows.take(rows.step < (incident.step or 0)).grad_norm
    norms = before[np.isfinite(before)][-WINDOW:]
    if len(norms) < 5:
        answer, fact = "unknown", "Too few gradient norms were recorded before it."
    else:
        median, top = float(np.median(norms)), float(norms[-10:].max())
        answer = "yes" if top > LARGE * median else "no"
        fact = f"Largest of the 10 steps before: {show(top)}, median {show(median)}."
    return Branch(question="Large gradients before it?", answers=YES_NO, answer=answer, fact=fact)


def _checkpoint(material: Material, *, stable: bool) -> Branch:
    step = last_checkpoint(material, stable=stable)
    word = "stable " if stable else ""
    fact = f"No {word}checkpoint is known."
    if step is not None:
        fact = f"The newest {word}checkpoint is that of step {step}."
    return Branch(
        question=f"Is a {word}checkpoint at hand?",
        answers=YES_NO,
        answer="no" if step is None else "yes",
        fact=fact,
    )
