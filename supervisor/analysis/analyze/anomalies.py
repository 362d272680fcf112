"""The result of `analyze`: anomalous steps, repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.analysis.analyze.statistics import Statistics

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
        return {
            "anomalies": [
                {
                    "step": anomaly.step,
                    "original_loss": anomaly.original_loss,
                    "recomputed_loss": anomaly.recomputed_loss,
                    "top_gradients": anomaly.top_gradients,
                    "cause": anomaly.cause,
                }
                for anomaly in self.anomalies
            ],
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
