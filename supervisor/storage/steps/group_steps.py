"""The steps of all ranks as one training's, as they are judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from supervisor.errors import RunDirectoryError
from supervisor.ranks import LEAD_RANK
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps
from supervisor.storage.steps.step_rows import GRAD_SEEN, LOSS_SEEN

_MOST_TIMES = 2**20
"""A step may be recorded so often."""


def read_group_steps(
    rundir: RunDirectory,
    ranks: int,
    *,
    all_attempts: bool = False,
    fields: Sequence[str] | None = None,
    only_common: bool = True,
) -> np.ndarray:
    """Returns what `read_steps` does, of all ranks together (see `supervisor.agreement`).

    A rank that makes no steps (a parameter server's clients) does not count.

    Args:
        rundir: of the run.
        ranks: how many.
        all_attempts, fields: as for `read_steps`; with several ranks `flags` is needed.
        only_common: a step that not all ranks have recorded is left out. Otherwise all steps of
            the first of them are there, joined of the ranks that have them.

    Raises:
        RunDirectoryError: there are none, or they cannot be read.
    """
    lead = read_steps(rundir, LEAD_RANK, all_attempts=all_attempts, fields=fields)
    found = [lead]
    for rank in range(1, ranks):
        try:
            found.append(read_steps(rundir, rank, all_attempts=all_attempts, fields=fields))
        except RunDirectoryError:
            if only_common:
                raise
    trained = [rows for rows in found if len(rows)]
    return join_steps(trained, only_common=only_common) if len(trained) > 1 else (*trained, lead)[0]


def join_steps(ranks: Sequence[np.ndarray], *, only_common: bool = True) -> np.ndarray:
    """Pure: see `read_group_steps`; the order is that of the first rank's rows."""
    keys = [_numbered(rows["step"]) for rows in ranks]
    wanted = keys[0]
    if only_common:
        for others in keys[1:]:
            wanted = wanted[np.isin(wanted, others)]
    there = np.stack([np.isin(wanted, own) for own in keys])
    rows = np.stack([_picked(own, key, wanted) for own, key in zip(ranks, keys, strict=True)])
    joined: np.ndarray = rows[0].copy()
    flags = np.where(there, rows["flags"], 0)
    joined["flags"] = np.bitwise_or.reduce(flags, axis=0)
    names = joined.dtype.names or ()
    with np.errstate(invalid="ignore", divide="ignore"):
        saw = (flags & LOSS_SEEN) > 0
        joined["loss"] = np.where(saw, rows["loss"], 0.0).sum(axis=0) / saw.sum(axis=0)
        if "grad_norm" in names:
            saw = (flags & GRAD_SEEN) > 0
            norms = np.where(saw, rows["grad_norm"], -np.inf).max(axis=0)
            joined["grad_norm"] = np.where(saw.any(axis=0), norms, np.nan)
    if "batch_size" in names:
        joined["batch_size"] = np.where(there, rows["batch_size"], 0).sum(axis=0)
    for name in {"step_time_s", "memory_gib"}.intersection(names):
        joined[name] = np.fmax.reduce(np.where(there, rows[name], np.nan), axis=0)
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
    """The rows with these numbers, and any row where there is none."""
    if not len(rows):
        return np.zeros(len(wanted), rows.dtype)
    order = np.argsort(keys)
    at = np.searchsorted(keys[order], wanted)
    picked: np.ndarray = rows[order[np.minimum(at, len(rows) - 1)]]
    return picked
