"""Fits the predictor's calibration on the train and validation splits of the corpus.

    python -m benchmarks.calibrate CORPUS

Prints `KNOTS` for supervisor/prediction/calibration.py: isotonic regression (pool adjacent
violators) of "a crash within 20 steps, or under way" on the evidence, and how far off it is on each
architecture when it is fitted without that one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.scorecard.calibration import pairs, reliability_of
from benchmarks.scorecard.labelled_run import load_runs
from benchmarks.scorecard.measurement import Measurement, measure

EDGES = (0.0, 0.01, 0.5, 0.7, 1.01)
"""The evidence has few values; each range between two edges is one block, at its mean evidence."""

SLOPE = 0.01
"""The last knot lies so much higher at evidence 1, so that more evidence always says more."""


def knots(evidence: np.ndarray, doomed: np.ndarray) -> list[tuple[float, float]]:
    """(mean evidence, share doomed) of blocks whose shares rise."""
    blocks: list[tuple[float, float, float]] = []
    for low, high in itertools.pairwise(EDGES):
        hit = (evidence >= low) & (evidence < high)
        if not hit.any():
            continue
        blocks.append((float(hit.sum()), float(evidence[hit].mean()), float(doomed[hit].mean())))
        while len(blocks) > 1 and blocks[-2][2] >= blocks[-1][2]:
            blocks[-2:] = [_pool(*blocks[-2:])]
    found = [(round(at, 3), round(share, 3)) for _, at, share in blocks]
    return [*found, (1.0, round(found[-1][1] + SLOPE, 3))]


def _pool(
    one: tuple[float, float, float], two: tuple[float, float, float]
) -> tuple[float, float, float]:
    count = one[0] + two[0]
    return (
        count,
        (one[0] * one[1] + two[0] * two[1]) / count,
        (one[0] * one[2] + two[0] * two[2]) / count,
    )


def left_out(measured: Sequence[Measurement]) -> None:
    """Prints the reliability on each architecture, fitted on the others."""
    for name in sorted({m.run.trace.recipe.architecture for m in measured}):
        rest = [m for m in measured if m.run.trace.recipe.architecture != name]
        part = [m for m in measured if m.run.trace.recipe.architecture == name]
        found = knots(*pairs(rest, "evidence"))
        evidence, doomed = pairs(part, "evidence")
        said = np.interp(evidence, [at for at, _ in found], [share for _, share in found])
        print(f"{name}, fitted without it:", reliability_of(said, doomed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    arguments = parser.parse_args()
    runs = [run for run in load_runs(arguments.corpus) if run.split in ("train", "validation")]
    measured = [measure(run) for run in runs]
    print(f"KNOTS = {tuple(knots(*pairs(measured, 'evidence')))}")
    left_out(measured)


if __name__ == "__main__":
    main()
