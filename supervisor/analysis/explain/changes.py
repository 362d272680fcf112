"""The changes that replays try."""

from __future__ import annotations

from typing import Any

import numpy as np

from supervisor.analysis.explain.onset import healthy, rate_jump
from supervisor.analysis.explain.replay import ReplayChange
from supervisor.analysis.explain.rules import (
    BEFORE_ONSET,
    CHANGES,
    CLIPPED,
    FP32,
    FRESH_OPTIMIZER,
    LR_BEFORE,
    LR_HALF,
    LR_TENTH,
    OLD_WEIGHTS,
    OTHER_SEED,
    RATE_ZERO,
    RESHUFFLED,
    WITHOUT_BATCH,
)

MAX_SKIPPED = 5
OTHER = 20_231
"""An arbitrary seed that no script is likely to use."""


def changes_to_try(recorded: np.ndarray, onset: int, crash: int) -> list[ReplayChange]:
    """Returns the replays that may be informative about this trouble, in the order of `CHANGES`.

    Args:
        recorded: the run's steps, see `read_steps`.
        onset: first step of the trouble in the run.
        crash: step at which the identical replay crashed.
    """
    skipped = tuple(range(onset, min(max(onset, crash), onset + MAX_SKIPPED - 1) + 1))
    before = list(range(max(0, min(onset, crash) - BEFORE_ONSET), onset + 1))
    experiments: dict[str, dict[str, Any]] = {
        WITHOUT_BATCH: {},
        FP32: {"fp32": True},
        LR_HALF: {"lr_factor": 0.5},
        LR_TENTH: {"lr_factor": 0.1},
        RATE_ZERO: {"lr_factor": 0.0},
        FRESH_OPTIMIZER: {"fresh_optimizer_at": before},
        OTHER_SEED: {"seed": OTHER},
        RESHUFFLED: {"seed": OTHER + 1, "reshuffle": 1},
        OLD_WEIGHTS: {"old_weights_at": before},
    }
    jump = rate_jump(recorded, max(onset, crash))
    if jump is not None:
        experiments[LR_BEFORE] = {"lr_from": jump[0], "lr_factor": jump[1]}
    norms = healthy(recorded, "grad_norm", onset)
    if len(norms):
        experiments[CLIPPED] = {"clip_norm": float(np.median(norms))}
    return [
        ReplayChange(
            name=name,
            experiment=experiments[name],
            skip_steps=skipped if name == WITHOUT_BATCH else (),
        )
        for name in CHANGES
        if name in experiments
    ]
