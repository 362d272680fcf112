"""What the steps before an anomaly say about it, and the result of `analyze`. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from supervisor.analysis.explain.onset import healthy, nonfinite

WINDOW = 50
HIGH = 2.0
"""A value this many times the window's median is at another level."""
SKEWED = 0.2
"""Distance of mean and median, relative to the median, from which a few steps dominate the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Loss and gradient norm over the `WINDOW` steps before a step; NaN if unknown.

    Attributes:
        loss_jump, grad_jump: the step's value over that of the step before it.
        verdict: one sentence.
    """

    loss_median: float
    loss_mean: float
    loss_jump: float
    grad_median: float
    grad_mean: float
    grad_jump: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers of a step, as recorded or repeated; may be NaN or infinite."""

    loss: float
    grad_norm: float


def numbers_at(rows: np.ndarray, step: int) -> Numbers:
    """Returns the numbers of the first row of a step; NaN without one."""
    at = rows[rows["step"] == step]
    if not len(at):
        return Numbers(loss=math.nan, grad_norm=math.nan)
    return Numbers(loss=float(at["loss"][0]), grad_norm=float(at["grad_norm"][0]))


def statistics_at(rows: np.ndarray, step: int) -> Statistics:
    """Judges a step by the recorded rows; `rows` may hold steps of several attempts."""
    losses = healthy(rows, "loss", step, WINDOW)
    norms = healthy(rows, "grad_norm", step, WINDOW)
    seen = numbers_at(rows, step)
    loss, norm = seen.loss, seen.grad_norm
    bad = bool(nonfinite(rows[rows["step"] == step][:1]).any())
    return Statistics(
        loss_median=_median(losses),
        loss_mean=_mean(losses),
        loss_jump=_ratio(loss, losses),
        grad_median=_median(norms),
        grad_mean=_mean(norms),
        grad_jump=_ratio(norm, norms),
        verdict="; ".join(_verdict(loss, losses, norm, norms, bad=bad)),
    )


def cause_of(
    statistics: Statistics, original: Numbers, recomputed: Numbers, other_seeds: Sequence[Numbers]
) -> str:
    """Returns one sentence on the cause: from the numbers, then from the repetitions.

    Repetitions are compared by what was abnormal: the loss, or else the gradient norm.

    Args:
        statistics: of the step.
        original, recomputed: its numbers, recorded and repeated.
        other_seeds: with the same batch under other seeds; may be empty.
    """
    text = statistics.verdict
    if not _is_same(original.loss, recomputed.loss):
        return f"{text}; the loss differs when computed again: not the batch alone"
    which = _out_of_order(statistics, original)
    if which == "grad_norm" and not _is_same(original.grad_norm, recomputed.grad_norm):
        return f"{text}; the gradient norm differs when computed again: not the batch alone"
    if not other_seeds or not which:
        return text
    value = getattr(recomputed, which)
    others = [getattr(numbers, which) for numbers in other_seeds]
    if not math.isfinite(value):
        sick = [not math.isfinite(other) for other in others]
    else:
        usual = statistics.loss_median if which == "loss" else statistics.grad_median
        sick = [not other < 0.5 * (value + usual) for other in others]
    if all(sick):
        return f"{text}; the same under other seeds: the batch or the weights, not chance"
    if not any(sick):
        return f"{text}; not under other seeds: the random numbers of this step"
    return f"{text}; under {sum(sick)} of {len(sick)} other seeds, too"


def _is_same(then: float, now: float) -> bool:
    """Whether two values are equal within rounding, or both not finite."""
    if not (math.isfinite(then) and math.isfinite(now)):
        return math.isfinite(then) == math.isfinite(now)
    return math.isclose(then, now, rel_tol=1e-3)


def _out_of_order(statistics: Statistics, original: Numbers) -> str:
    """The field of `Numbers` that made the step an anomaly; empty if none did."""
    if not math.isfinite(original.loss):
        return "loss"
    if not math.isfinite(original.grad_norm):
        return "grad_norm"
    for name, level, jump in (
        ("loss", original.loss / (statistics.loss_median or math.nan), statistics.loss_jump),
        ("grad_norm", original.grad_norm / (statistics.grad_median or math.nan),
         statistics.grad_jump),
    ):  # fmt: skip
        if level >= HIGH or jump >= HIGH:
            return name
    return ""


def _verdict(
    loss: float, losses: np.ndarray, norm: float, norms: np.ndarray, *, bad: bool
) -> list[str]:
    if bad:
        which = "loss" if not math.isfinite(loss) else "gradient"
        return [f"the {which} is not finite"]
    found = _describe("loss", loss, losses) or _describe("gradient norm", norm, norms)
    said = [found or "level and change are those of the steps before"]
    median, mean = _median(losses), _mean(losses)
    if median > 0 and abs(mean - median) > SKEWED * median:
        side = "above" if mean > median else "below"
        share = abs(mean - median) / median
        said.append(f"the mean lies {share:.0%} {side} the median: a few steps dominate it")
    return said


def _describe(name: str, value: float, before: np.ndarray) -> str:
    median = _median(before)
    if not (len(before) and math.isfinite(value) and median > 0):
        return ""
    level, jump = value / median, _ratio(value, before)
    if level < HIGH and jump < HIGH:
        return ""
    at = f"{value:.4g}, {level:.3g} times the median of {len(before)} steps"
    if jump >= HIGH:
        return f"the {name} jumped to {at}"
    return f"the {name} rose over several steps to {at}"


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _ratio(value: float, before: np.ndarray) -> float:
    return value / float(before[-1]) if len(before) and before[-1] > 0 else math.nan


TOP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One anomalous step, repeated.

    Attributes:
        gradients: parameter → L2 norm before clipping, largest first.
        activations: module → figures of its output.
        other_seeds: seed → loss of the same batch.
        same_batch: whether the replay's batch is the captured one; None if unknown.
        rank: of several, whose sample, gradients and activations these are because it began the
            trouble; None where none did, or there is one.
        exact: the replay started from exactly the recorded state.
        nonfinite: what `find_nonfinite` says; None if it was not called.
    """

    step: int
    original_loss: float
    recomputed_loss: float
    gradients: dict[str, float]
    activations: dict[str, dict[str, Any]]
    other_seeds: dict[int, float] = field(default_factory=dict)
    same_batch: bool | None
    exact: bool
    sample: int | None
    nonfinite: dict[str, Any] | None
    statistics: Statistics
    cause: str
    grad_norm: float
    rank: int | None = None

    @property
    def top_gradients(self) -> list[dict[str, Any]]:
        return [{"name": name, "norm": norm} for name, norm in list(self.gradients.items())[:TOP]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The result of `analyze`; `left_out` has the steps that could not be repeated, and why."""

    anomalies: tuple[Anomaly, ...]
    left_out: dict[int, str]

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of ``analyze --json``; means are over the recomputed finite values."""
        fields = ("step", "original_loss", "recomputed_loss", "top_gradients", "cause")
        return {
            "anomalies": [{name: getattr(a, name) for name in fields} for a in self.anomalies],
            "summary": {
                "count": len(self.anomalies),
                "mean_loss": _finite_mean([a.recomputed_loss for a in self.anomalies]),
                "mean_grad_norm": _finite_mean([a.grad_norm for a in self.anomalies]),
            },
        }

    def __str__(self) -> str:
        lines: list[str] = []
        for anomaly in self.anomalies:
            lines.append(
                f"step {anomaly.step}: loss {anomaly.original_loss:.6g}, computed again "
                f"{anomaly.recomputed_loss:.6g}: {anomaly.cause}"
            )
            for seed, loss in anomaly.other_seeds.items():
                lines.append(f"    seed {seed}: loss {loss:.6g}")
            if anomaly.sample is not None:
                whose = "the batch" if anomaly.rank is None else f"rank {anomaly.rank}'s batch"
                lines.append(f"    sample {anomaly.sample} of {whose} stands out")
            for gradient in anomaly.top_gradients:
                lines.append(f"    {gradient['norm']:>12.4g}  {gradient['name']}")
        lines += [f"step {step}: left out: {why}" for step, why in self.left_out.items()]
        summary = self.to_dict()["summary"]
        mean, norm = summary["mean_loss"], summary["mean_grad_norm"]
        figures = f"mean loss {_figure(mean)}, mean gradient norm {_figure(norm)}"
        return "\n".join([*lines, f"{summary['count']} anomalies: {figures}"])


def _finite_mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"
