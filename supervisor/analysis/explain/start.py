"""Where a replay starts, and whether it repeats the recorded run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from supervisor.analysis.explain.replay import ReplayRunner
from supervisor.analysis.explain.rules import BEFORE_ONSET, IMMEDIATE_STEPS
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.run.rundir import RunDirectory


def start_before(
    rundir: RunDirectory,
    runner: ReplayRunner,
    onset_step: int,
    say: Callable[[str], None] = lambda _: None,
) -> Checkpoint | None:
    """Returns the newest stable checkpoint before a step, else the newest that verifies.

    One so close that its state may already be sick is taken only if there is no older one. `say` is
    called for each damaged one.
    """
    told: set[int] = set()

    def reject(checkpoint: Checkpoint, why: str) -> None:
        if checkpoint.step not in told:
            told.add(checkpoint.step)
            say(f"the checkpoint of step {checkpoint.step} is damaged and passed over ({why})")

    ring = CheckpointRing(rundir.checkpoints, runner.settings.checkpoint, on_rejected=reject)
    limit = max(1, onset_step - BEFORE_ONSET + 1)
    for before in (limit - IMMEDIATE_STEPS, limit):
        stable = ring.last_stable(before_step=before)
        found = stable or ring.newest_verified(before_step=before)
        if found is not None:
            return found
    return None


def first_difference(recorded: np.ndarray, replayed: np.ndarray, until: int) -> int | None:
    """Returns the first step before `until` whose loss differs from the recorded one in any bit."""
    losses: dict[int, set[float]] = {}
    for step, loss in zip(recorded["step"], recorded["loss"], strict=True):
        losses.setdefault(int(step), set()).add(float(loss))
    for step, loss in zip(replayed["step"], replayed["loss"], strict=True):
        known = losses.get(int(step), set())
        if step < until and np.isfinite(loss) and known and float(loss) not in known:
            return int(step)
    return None
