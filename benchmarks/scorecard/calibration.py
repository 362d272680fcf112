"""Whether the probability means what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.scorecard.measurement import Measurement

EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SMALLEST_BIN = 100


def pairs(measured: Sequence[Measurement], which: str) -> tuple[np.ndarray, np.ndarray]:
    """(`which` of a `Measurement`, whether a crash came within 20 steps) of steps with a label."""
    said, true = [], []
    for m in measured:
        if m.run.outcome.crashed or m.run.outcome.label == "healthy":
            doomed = m.run.doomed
            said.append(getattr(m, which)[: len(doomed)])
            true.append(doomed.astype(float))
    return np.concatenate(said), np.concatenate(true)


def reliability(measured: Sequence[Measurement], which: str) -> dict[str, Any]:
    """Brier score beside that of the base rate, and bins: [steps, said, true]."""
    return reliability_of(*pairs(measured, which))


def reliability_of(said: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """The same for probabilities `said` and outcomes `true` (0 or 1), one of each a step."""
    base = float(true.mean())
    slots = np.clip(np.searchsorted(EDGES, said, side="right") - 1, 0, len(EDGES) - 2)
    bins = [
        [int(hit.sum()), round(float(said[hit].mean()), 3), round(float(true[hit].mean()), 3)]
        for hit in (slots == slot for slot in range(len(EDGES) - 1))
        if hit.any()
    ]
    gaps = [abs(stated - seen) for count, stated, seen in bins if count >= SMALLEST_BIN]
    return {
        "steps": len(said),
        "brier": round(float(np.mean((said - true) ** 2)), 5),
        "brier_of_base_rate": round(base * (1 - base), 5),
        "base_rate": round(base, 5),
        "largest_gap": round(max(gaps), 3),
        "bins": bins,
    }
