"""The shape of a loss explosion, and what that shape usually means."""

from __future__ import annotations

import math

import numpy as np

from supervisor.report.facts.crash_report import Explosion
from supervisor.report.facts.figures import show
from supervisor.report.facts.step_table import Floats, StepTable

BASELINE_STEPS = 50
LOOK_BACK_STEPS = 300
LEVEL_STEPS = 20  # the level that a falling loss had reached when it broke out
MIN_BASELINE_STEPS = 5
SUDDEN_STEPS = 2
MIN_SHARE = 0.5  # how far the peak must lie above the baseline, as a share of it
MIN_MADS = 8.0
MOST = 0.5  # share of the peak's excess: reached at once, it was no climb
REVERSAL_SHARE = 0.3
REVERSAL_SIZE = 0.15  # share of the excess: smaller swings are noise, not oscillation

RATE_TOO_HIGH = "the learning rate is too high for this phase of the training"
CAUSES = {
    "sudden_jump": (
        "one bad batch: corrupted, mislabelled or empty samples",
        "an overflow of half precision in a single forward or backward",
        "division by zero, or the logarithm of zero, in the loss",
    ),
    "exponential_growth": (
        RATE_TOO_HIGH,
        "gradients accumulate: zero_grad() is missing, or accumulation is not averaged",
        "clipping is missing or comes after the optimizer's step",
    ),
    "oscillating_divergence": (
        "the optimizer's state is stale: second moments too small for the gradients that came",
        "momentum is too high for the learning rate",
        "a schedule or a batch size that alternates",
    ),
}


def find_explosion(steps: StepTable, *, until: int | None = None) -> Explosion | None:
    """Names the shape of the last loss explosion at or before step `until`; None without one.

    Onset is the first step of the last unbroken climb out of the band median +- 8 MAD of the
    steps before. A climb that is half-way up within two steps is sudden. Of the longer ones, those
    with many large reversals are oscillations; the rest is growth.
    """
    window = steps.until(until).take(slice(-LOOK_BACK_STEPS, None))
    bad = window.nonfinite_loss
    seen = np.isfinite(window.loss) | bad
    window, bad = window.take(seen), bad[seen]
    if len(window) < MIN_BASELINE_STEPS + 1:
        return None
    loss = np.where(bad, np.inf, window.loss)
    peak = int(np.argmax(bad)) if bad.any() else int(np.argmax(loss))
    onset, baseline = _onset(loss, peak)
    if onset is None:
        return None
    recent = loss[:onset][np.isfinite(loss[:onset])][-LEVEL_STEPS:]
    baseline = float(np.median(recent)) if len(recent) else baseline
    shape = _shape(loss[onset : peak + 1] - baseline)
    factor = float(loss[peak] / baseline) if baseline > 0 else math.inf
    return Explosion(
        shape=shape,
        onset_step=int(window.step[onset]),
        peak_step=int(window.step[peak]),
        factor=factor,
        sentence=_sentence(shape, window, loss, onset, peak, baseline),
        likely_causes=CAUSES[shape],
    )


def _onset(loss: Floats, peak: int) -> tuple[int | None, float]:
    """Returns the index where the climb to `peak` begins, and the level before it."""
    before = loss[:peak]
    calm = before[np.isfinite(before)]
    if len(calm) < MIN_BASELINE_STEPS:
        return None, 0.0
    # The older half cannot be part of a climb that ends at the peak and still
    # be the majority: the median over the older steps is the level before the climb.
    older = calm[-2 * BASELINE_STEPS :][: max(MIN_BASELINE_STEPS, min(len(calm), 100) // 2)]
    baseline = float(np.median(older))
    mad = 1.4826 * float(np.median(np.abs(older - baseline)))
    line = baseline + max(MIN_MADS * mad, MIN_SHARE * abs(baseline), 1e-12)
    if not loss[peak] > line:
        return None, baseline
    onset = peak
    # Out of the band, with gaps of up to three steps in it: an oscillation dips back now and then.
    gap = 0
    for index in range(peak - 1, -1, -1):
        if loss[index] > baseline + 0.5 * (line - baseline):
            onset, gap = index, 0
        else:
            gap += 1
            if gap > 3:
                break
    return onset, baseline


def _shape(excess: Floats) -> str:
    finite = excess[np.isfinite(excess)]
    if len(finite) <= SUDDEN_STEPS:
        return "sudden_jump"
    changes = np.diff(finite)
    size = np.maximum(np.abs(finite[1:]), np.abs(finite[:-1]))
    large = np.sign(changes) * (np.abs(changes) > REVERSAL_SIZE * size)
    moves = large[large != 0]
    reversals = int(np.sum(moves[1:] != moves[:-1]))
    if len(finite) >= 5 and reversals >= max(2, REVERSAL_SHARE * len(changes)):
        return "oscillating_divergence"
    if len(finite) == len(excess) and (finite[:SUDDEN_STEPS] >= MOST * finite[-1]).any():
        return "sudden_jump"  # it was that high from the first steps on, and only varies
    return "exponential_growth"


def _sentence(
    shape: str, window: StepTable, loss: Floats, onset: int, peak: int, baseline: float
) -> str:
    first, last = int(window.step[onset]), int(window.step[peak])
    top = "a non-finite value" if not math.isfinite(loss[peak]) else show(float(loss[peak]))
    if shape == "sudden_jump":
        return (
            f"Sudden jump: the loss left its level of about {show(baseline)} at step {first} "
            f"and was {top} at step {last}, without a climb before it."
        )
    climb = loss[onset : peak + 1] - baseline
    climb = climb[np.isfinite(climb) & (climb > 0)]
    if shape == "oscillating_divergence":
        return (
            f"Oscillating divergence: from step {first} to step {last} the loss swung up and down "
            f"with growing size, from a level of {show(baseline)} to {top}."
        )
    rate = float(np.polyfit(np.arange(len(climb)), np.log(climb), 1)[0]) if len(climb) > 2 else 0.0
    pace = f", doubling about every {show(math.log(2) / rate, 2)} steps" if rate > 0.01 else ""
    return (
        f"Exponential growth: the loss climbed from a level of {show(baseline)} at step {first} "
        f"to {top} at step {last}{pace}."
    )
