"""The steps of all ranks as one training's, as they are judged."""

from __future__ import annotations

import numpy as np

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps
from supervisor.storage.steps.step_rows import GRAD_SEEN, LOSS_SEEN

_MOST_TIMES = 2**20
"""A step may be recorded so often."""


def read_group_steps(rundir: RunDirectory, ranks: int, *, all_attempts: bool = False) -> np.ndarray:
    """Returns what `read_steps` does, of all ranks together (see `supervisor.agreement`).

    A step that not all ranks have recorded is left out.

    Raises:
        RunDirectoryError: there are none, or they cannot be read.
    """
    found = [read_steps(rundir, rank, all_attempts=all_attempts) for rank in range(ranks)]
    return found[0] if ranks == 1 else join_steps(found)


def join_steps(ranks: list[np.ndarray]) -> np.ndarray:
    """Pure: see `read_group_steps`; the order is that of the first rank's rows."""
    keys = [_numbered(rows["step"]) for rows in ranks]
    common = keys[0]
    for others in keys[1:]:
        common = common[np.isin(common, others)]
    rows = np.stack([_picked(own, key, common) for own, key in zip(ranks, keys, strict=True)])
    joined: np.ndarray = rows[0].copy()
    joined["flags"] = np.bitwise_or.reduce(rows["flags"], axis=0)
    saw_loss, saw_norm = (rows["flags"] & LOSS_SEEN) > 0, (rows["flags"] & GRAD_SEEN) > 0
    count = saw_loss.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        joined["loss"] = np.where(saw_loss, rows["loss"], 0.0).sum(axis=0) / count
    norms = np.where(saw_norm, rows["grad_norm"], -np.inf).max(axis=0)
    joined["grad_norm"] = np.where(saw_norm.any(axis=0), norms, np.nan)
    joined["batch_size"] = rows["batch_size"].sum(axis=0)
    for name in ("step_time_s", "memory_gib"):
        joined[name] = np.fmax.reduce(rows[name], axis=0)
    return joined


def _numbered(steps: np.ndarray) -> np.ndarray:
    """A number for each row: a step that a rank has made again comes a second time."""
    order = np.argsort(steps, kind="stable")
    _, first, counts = np.unique(steps[order], return_index=True, return_counts=True)
    times = np.empty(len(steps), np.int64)
    times[order] = np.arange(len(steps)) - np.repeat(first, counts)
    numbered: np.ndarray = steps.astype(np.int64) * _MOST_TIMES + times
    return numbered


def _picked(rows: np.ndarray, keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    order = np.argsort(keys)
    picked: np.ndarray = rows[order[np.searchsorted(keys[order], wanted)]]
    return picked
