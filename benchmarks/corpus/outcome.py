"""How a run ended, judged by nothing but what it did."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from benchmarks.corpus.trace import Trace

RECOVERY_STEPS = 100
"""A loss that is back within so many steps has recovered."""

LEVEL, SMOOTH, SHORT = 25, 9, 5
"""Steps of the medians that stand for the level, its present course, and a peak."""

STALL_STEPS = 30
"""Updates in a row that a loss scaler leaves out, after which the training stands."""

CRASHES = ("nonfinite", "diverged", "stalled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The label of a run.

    Attributes:
        label: one of `CRASHES`, or ``healthy``, ``collapsed`` (a VAE without KL), ``stuck``
            (never learned, never left its course), ``undecided`` (off its course at the end, for
            too few steps to know).
        onset: first step at which the crash is visible in hindsight; -1 without one.
        crash: the step from which it is one.
        peak: the step at which it is complete: the first value that is not finite, or the middle of
            the first five steps whose median has 90 % of the height that such a median reaches
            within the recovery window.
        excursions: (first, last) step of each departure that came back by itself.
    """

    label: str
    onset: int = -1
    crash: int = -1
    peak: int = -1
    excursions: tuple[tuple[int, int], ...] = ()

    @property
    def crashed(self) -> bool:
        return self.label in CRASHES


def judge(trace: Trace) -> Outcome:
    """Labels a run that was left to itself.

    A *crash* is the first of

    * a loss, or after the update a weight, that is not finite (``nonfinite``);
    * the loss leaving its trajectory for good (``diverged``): the median of 9 steps is above

          best + max(25 % of |best|, 10 % of (start - best), 1 standard deviation)

      where best is the lowest median of 25 steps so far, start that of the first 10 steps, and the
      deviation that of single steps about the level (1.4826 x MAD); and it stays above for all of
      the next 100 steps (50 at least when the run ends);
    * 30 updates in a row that the loss scaler left out, 5 when the run ends (``stalled``).

    An excursion that ends earlier has *recovered*; it is noted if it rose twice as high. Where the
    data changed on purpose the trajectory begins anew. A policy is judged by 1 - reward instead of
    its loss, a generative pair by how far the made patches' mean and deviation are off.
    """
    end, label = _hard_end(trace)
    excursions: list[tuple[int, int]] = []
    borders = [0, *[step for step in trace.intended if step < end], end]
    for first, last in itertools.pairwise(borders):
        part = trace.columns["outcome"][first:last]
        onset, crash, peak, short = _drift(part, ends_run=last == len(trace))
        excursions += [(first + a, first + b) for a, b in short]
        if crash >= 0:
            return Outcome(
                label="diverged",
                onset=first + onset,
                crash=first + crash,
                peak=first + peak,
                excursions=tuple(excursions),
            )
    if label:
        begin = borders[-2]
        onset = begin + _visible(trace.columns["outcome"][begin:end])
        if label == "stalled":
            onset = min(onset, end - STALL_STEPS + 1)
        kept = tuple(e for e in excursions if e[1] < onset)
        return Outcome(label=label, onset=onset, crash=end, peak=end, excursions=kept)
    undecided = bool(excursions) and excursions[-1][1] == len(trace) - 1
    label = "undecided" if undecided else _calm_label(trace)
    return Outcome(label=label, excursions=tuple(excursions))


def _hard_end(trace: Trace) -> tuple[int, str]:
    """The first step that cannot be taken back, and what it is; the length and nothing if none."""
    bad = ~np.isfinite(trace.columns["loss"]) | (trace.columns["weights_finite"] == 0)
    if np.isfinite(trace.columns["loss_scale"]).any():
        skipped = ~np.isfinite(trace.columns["grad_norm"])
        bad &= trace.columns["weights_finite"] == 0
        run = 0
        for step, missing in enumerate(skipped):
            run = run + 1 if missing else 0
            if run == STALL_STEPS or (run >= SHORT and step == len(trace) - 1):
                return step, "stalled"
    steps = np.flatnonzero(bad)
    return (int(steps[0]), "nonfinite") if len(steps) else (len(trace), "")


def _medians(values: np.ndarray, size: int) -> np.ndarray:
    """Median of the last `size` values, of fewer at the start."""
    return np.array([np.median(values[max(0, i - size + 1) : i + 1]) for i in range(len(values))])


def _course(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every step: the best level so far, and by how much a departure exceeds it."""
    level = _medians(values, LEVEL)
    young = min(LEVEL, len(values))
    level[: young - 1] = np.maximum(level[: young - 1], level[young - 1])
    best = np.minimum.accumulate(level)
    start = float(np.median(values[:10]))
    off = np.abs(values - level)
    spread = np.array(
        [1.4826 * np.median(off[max(0, i - 150) : i + 1]) for i in range(len(values))]
    )
    spread = np.minimum.accumulate(np.maximum(spread, spread[min(len(spread) - 1, 50)]))
    return best, np.maximum.reduce([0.25 * np.abs(best), 0.1 * (start - best), spread])


def _drift(values: np.ndarray, *, ends_run: bool) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Onset, crash and peak of the first departure for good (or -1), and the excursions before."""
    short: list[tuple[int, int]] = []
    finite = np.isfinite(values)
    if len(values) < 2 * LEVEL or not finite.all():
        return -1, -1, -1, short
    best, width = _course(values)
    smooth = _medians(values, SMOOTH)
    above = smooth > best + width
    above[:LEVEL] = False
    step = 0
    while step < len(values):
        if not above[step]:
            step += 1
            continue
        stop = step
        while stop < len(values) and above[stop]:
            stop += 1
        lasts = stop - step
        if lasts >= RECOVERY_STEPS or (stop == len(values) and ends_run and lasts >= 50):
            return (*_dates(values, smooth, best, width, step), short)
        if (smooth[step:stop] > (best + 2 * width)[step:stop]).any():
            short.append((max(0, step - SMOOTH), stop - 1))
        step = stop
    return -1, -1, -1, short


def _dates(
    values: np.ndarray, smooth: np.ndarray, best: np.ndarray, width: np.ndarray, step: int
) -> tuple[int, int, int]:
    """Onset, crash and peak of the departure whose smooth course is above from `step` on."""
    lag = SMOOTH // 2
    crash = max(0, step - lag)
    calm = np.flatnonzero(smooth[:step] <= (best + 0.3 * width)[:step])
    onset = min(crash, max(0, (int(calm[-1]) if len(calm) else 0) + 1 - lag))
    course = _medians(values[crash : crash + RECOVERY_STEPS], SHORT)[SHORT - 1 :]
    line = best[step] + 0.9 * (float(course.max()) - best[step])
    return onset, crash, crash + SHORT // 2 + int(np.argmax(course >= line))


def _visible(values: np.ndarray) -> int:
    """The step after the last one that was still on course, of a run that then broke off."""
    values = values[np.isfinite(values)]
    if len(values) < LEVEL:
        quiet = float(np.median(values)) * 1.25 if len(values) else 0.0
        calm = np.flatnonzero(values <= quiet)
    else:
        best, width = _course(values)
        noise = 1.4826 * np.median(np.abs(values - _medians(values, LEVEL)))
        calm = np.flatnonzero(values <= best + np.maximum(width, 3 * noise))
    return int(calm[-1]) + 1 if len(calm) else 0


def _calm_label(trace: Trace) -> str:
    values = trace.columns["outcome"]
    if "kl" in trace.observed and np.median(trace.observed["kl"][-20:]) < 0.05:
        return "collapsed"
    start = np.median(values[:10])
    has_course = not trace.intended and trace.recipe.architecture not in ("gan", "pair")
    if has_course and start - _medians(values, LEVEL).min() < 0.05 * abs(start):
        return "stuck"
    return "healthy"
