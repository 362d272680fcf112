"""Recall at equal false alarms, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.scorecard.alarms import tally
from benchmarks.scorecard.measurement import OURS, Measurement
from supervisor.prediction.calibration import calibrate

MOST_FALSE = 5.0
"""False alarms per 10,000 healthy steps up to which the area counts."""

GRID = np.linspace(0.0, MOST_FALSE, 51)
RESAMPLES = 1000
MULTIPLES = tuple(float(m) for m in np.geomspace(0.4, 200, 28))
OWN_LINES = tuple(calibrate(evidence / 100) for evidence in range(30, 100))
"""Our judges are swept by their calibrated probability."""


@dataclass(frozen=True)
class Sweep:
    """One judge at many lines: (lines, runs) of false alarms and of finds."""

    false: np.ndarray
    found: np.ndarray


def sweep(measured: Sequence[Measurement], name: str) -> Sweep:
    own = name.startswith(OURS)
    lines = OWN_LINES if own else (*MULTIPLES, 1.0)
    values = [m.rankings[name] if own else m.strengths[name] for m in measured]
    tallies = [
        [tally(m.run, value >= line) for m, value in zip(measured, values, strict=True)]
        for line in lines
    ]
    return Sweep(
        np.array([[t.false for t in row] for row in tallies], dtype=float),
        np.array([[t.first >= 0 for t in row] for row in tallies], dtype=float),
    )


def partial_areas(
    measured: Sequence[Measurement], sweeps: dict[str, Sweep], seed: int = 0
) -> dict[str, dict[str, object]]:
    """Mean recall for 0 to 5 false alarms per 10,000 healthy steps, and how far ours is ahead.

    Each judge has its best line at every rate (the curve is the best point to the left). Runs are
    drawn again with replacement 1,000 times for 95 % intervals; the differences are paired.
    """
    healthy = np.array([m.run.healthy.sum() for m in measured], dtype=float)
    crashed = np.array([m.run.outcome.crashed for m in measured], dtype=float)
    draws = np.random.default_rng(seed).multinomial(
        len(measured), np.full(len(measured), 1 / len(measured)), size=RESAMPLES
    )
    weights = np.concatenate([np.ones((1, len(measured))), draws])
    areas = {name: _areas(one, weights, healthy, crashed) for name, one in sweeps.items()}
    result: dict[str, dict[str, object]] = {}
    for name, values in areas.items():
        ahead = areas[OURS] - values
        result[name] = {
            "partial_area": round(float(values[0]), 3),
            "interval": _interval(values[1:]),
            "ours_ahead_by": round(float(ahead[0]), 3),
            "ahead_interval": _interval(ahead[1:]),
        }
    return result


def curve(measured: Sequence[Measurement], one: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """(false alarms per 10,000 healthy steps, recall at the best line with no more of them)."""
    healthy = np.array([m.run.healthy.sum() for m in measured], dtype=float)
    crashed = np.array([m.run.outcome.crashed for m in measured], dtype=float)
    return GRID, _curves(one, np.ones((1, len(measured))), healthy, crashed)[0]


def _areas(one: Sweep, weights: np.ndarray, healthy: np.ndarray, crashed: np.ndarray) -> np.ndarray:
    return _curves(one, weights, healthy, crashed).mean(axis=1)


def _curves(
    one: Sweep, weights: np.ndarray, healthy: np.ndarray, crashed: np.ndarray
) -> np.ndarray:
    false = 1e4 * weights @ one.false.T / (weights @ healthy)[:, None]
    recall = weights @ one.found.T / np.maximum(1.0, weights @ crashed)[:, None]
    return np.where(false[:, :, None] <= GRID, recall[:, :, None], 0.0).max(axis=1)


def _interval(values: np.ndarray) -> list[float]:
    return [round(float(q), 3) for q in np.percentile(values, [2.5, 97.5])]
