"""The first sentence about numerical trouble, in plain words."""

from __future__ import annotations

import numpy as np

from supervisor.detectors.statistics.leap import is_leap
from supervisor.report.facts.figures import show
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import Floats

USUAL_STEPS = 50
_WORDS = {
    "nonfinite_loss": "the loss became NaN or infinite",
    "nonfinite_gradient": "the gradient became NaN or infinite",
    "loss_spike": "the loss or the gradient jumped",
    "divergence": "the loss diverged",
    "instability": "the loss left its course and came back, twice",
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
    said = said[:1].lower() + said[1:]
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
        usual = _usual(values)
        if usual is not None and len(now) and is_leap(float(now[-1]), usual):
            return f"the {name} jumped to {show(float(now[-1]))}, from the usual {show(usual)}"
    return ""


def _usual(values: Floats) -> float | None:
    known = values[np.isfinite(values)][-USUAL_STEPS:]
    return float(np.median(known)) if len(known) else None
