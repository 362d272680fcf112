"""From a few facts to a first remedy."""

from __future__ import annotations

import numpy as np

from supervisor.report.facts.crash_report import Branch, DecisionPath, Incident
from supervisor.report.facts.figures import show
from supervisor.report.facts.run_data import RunData
from supervisor.report.incidents.bad_samples import samples_behind
from supervisor.report.incidents.evidence import (
    LARGE,
    WINDOW,
    last_checkpoint,
    rate_jump,
    rate_rise,
)
from supervisor.report.incidents.remedies import (
    IN_SCRIPT,
    REMEDY_OF_KIND,
    NumericalFacts,
    numerical_remedy,
    process_remedy,
)

EARLY_STEPS = 1000
YES_NO = ("yes", "no")


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
        found = process_remedy(run_data, incident)
        return DecisionPath(
            branches=(process, checkpoint), remedy=str(found), before_next=found.before_next
        )
    samples = samples_behind(run_data, incident)
    if samples:
        named = Branch(
            question="Was it in the data?",
            answers=YES_NO,
            answer="yes",
            fact=f"NaN or infinity was found in {samples}.",
        )
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
        passed = Branch(
            question="Did the training get past it?",
            answers=YES_NO,
            answer="yes",
            fact="The training went on past it, with finite numbers.",
        )
        return DecisionPath(branches=(process, passed, rate, early, mixed, large), remedy=remedy)
    return DecisionPath(branches=branches, remedy=remedy, setting=setting)


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


def _mixed_precision(run_data: RunData) -> Branch:
    scales = run_data.steps.loss_scale[np.isfinite(run_data.steps.loss_scale)]
    if len(scales):
        fact = f"A GradScaler was at work, last with the scale {show(float(scales[-1]))}."
        answer = "yes"
    else:
        fact, answer = "No GradScaler was seen (BF16 without a scaler looks the same).", "no"
    return Branch(question="FP16 with a loss scale?", answers=YES_NO, answer=answer, fact=fact)


def _large_gradients(run_data: RunData, incident: Incident) -> Branch:
    rows = run_data.steps.of_attempt(incident.attempt)
    before = rows.take(rows.step < (incident.step or 0)).grad_norm
    norms = before[np.isfinite(before)][-WINDOW:]
    if len(norms) < 5:
        answer, fact = "unknown", "Too few gradient norms were recorded before it."
    else:
        median, top = float(np.median(norms)), float(norms[-10:].max())
        answer = "yes" if top > LARGE * median else "no"
        fact = f"Largest of the 10 steps before: {show(top)}, median {show(median)}."
    return Branch(question="Large gradients before it?", answers=YES_NO, answer=answer, fact=fact)


def _checkpoint(run_data: RunData, *, stable: bool) -> Branch:
    step = last_checkpoint(run_data, stable=stable)
    word = "stable " if stable else ""
    fact = f"No {word}checkpoint is known."
    if step is not None:
        fact = f"The newest {word}checkpoint is that of step {step}."
    return Branch(
        question=f"Is there a {word}checkpoint?",
        answers=YES_NO,
        answer="no" if step is None else "yes",
        fact=fact,
    )
