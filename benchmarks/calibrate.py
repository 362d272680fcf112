"""Fits the predictor's calibration on the train split of the corpus, checks it on validation.

    python -m benchmarks.calibrate CORPUS

Prints `KNOTS` for supervisor/prediction/calibration.py: isotonic regression (pool adjacent
violators) of "a crash within 20 steps, or under way" on the risk, a knot for each of its tiers.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np

from benchmarks.scorecard.calibration import pairs, reliability
from benchmarks.scorecard.labelled_run import load_runs
from benchmarks.scorecard.measurement import measure

TIERS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.9, 1.01)
"""The risk has few values; each tier is one knot, at its mean risk."""


def knots(risk: np.ndarray, doomed: np.ndarray) -> list[tuple[float, float]]:
    """(mean risk, share doomed) of every tier, the shares made monotone."""
    blocks: list[list[float]] = []
    for low, high in itertools.pairwise(TIERS):
        hit = (risk >= low) & (risk < high)
        if hit.any():
            blocks.append(
                [float(hit.sum()), float(doomed[hit].mean()), 1.0, float(risk[hit].mean())]
            )
    pooled: list[list[float]] = []
    for count, share, _, _ in blocks:
        pooled.append([count, share, 1.0])
        while len(pooled) > 1 and pooled[-2][1] > pooled[-1][1]:
            later, earlier = pooled.pop(), pooled.pop()
            total = earlier[0] + later[0]
            share = (earlier[0] * earlier[1] + later[0] * later[1]) / total
            pooled.append([total, share, earlier[2] + later[2]])
    shares = [share for _, share, size in pooled for _ in range(int(size))]
    return [
        (round(block[3], 3), round(share, 3)) for block, share in zip(blocks, shares, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    arguments = parser.parse_args()
    runs = [run for run in load_runs(arguments.corpus) if run.split in ("train", "validation")]
    measured = [measure(run) for run in runs]
    train = [m for m in measured if m.run.split == "train"]
    print(f"KNOTS = {tuple(knots(*pairs(train, 'risk')))}")
    for split in ("train", "validation"):
        part = [m for m in measured if m.run.split == split]
        print(split, "with the knots in force:", reliability(part, "calibrated"))


if __name__ == "__main__":
    main()
