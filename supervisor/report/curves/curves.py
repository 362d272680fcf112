"""The curves of a run by step, thinned for a screen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np

from supervisor.ranks import FIRST_RANK
from supervisor.report.facts.observed_values import observed_parts
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import (
    BUCKETS,
    FIELDS,
    Bools,
    Floats,
    StepTable,
    build_step_table,
    newest_rows,
    thin,
    thin_marks,
)
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import read_rates
from supervisor.storage.steps.flight_reader import FlightReader

MEASURED = ("loss", "grad_norm", "risk", "lr", "loss_scale", "step_time_s", "memory_gib")
"""Curves that do not depend on the script."""
APPLIED_RATE = "applied_lr"
OWN_POINTS = 40_000
"""Of all the script's own values together, in a page: some 800 KB."""
MOST_OWN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One value by step; of a step that was repeated, as it was the last time.

    Attributes:
        steps, values: finite, in the order of steps, without those that a screen cannot show.
        nonfinite: steps at which it was NaN or infinite.
    """

    steps: Floats
    values: Floats
    nonfinite: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What can be drawn of a run.

    Attributes:
        names: of all that was recorded, the script's own values last.
        by_name: those that were asked for and that have a value.
        first_step, last_step: of the whole run; None without a step.
    """

    names: tuple[str, ...]
    by_name: dict[str, Curve]
    first_step: int | None = None
    last_step: int | None = None


def read_curves(
    rundir: RunDirectory,
    names: Collection[str],
    *,
    first_step: float = -np.inf,
    last_step: float = np.inf,
    rank: int = FIRST_RANK,
) -> Curves:
    """Reads curves of a run, which may go on meanwhile.

    Args:
        rundir, rank: whose.
        names: which.
        first_step, last_step: the part that is wanted; a shorter one is thinned less.

    Raises:
        OSError, RunDirectoryError: the steps cannot be read.
    """
    path = rundir.steps(rank)
    with FlightReader(path) as reader:
        table = build_step_table(reader.read_fields(FIELDS), read_rates(path))
        observed = _observed(reader, names, len(table))
    if not len(table):
        return Curves(names=(), by_name={})
    found = _measured(table)
    every = (*found, *observed)
    for name, (rows, values) in observed.items():
        if rows is not None:
            column = np.full(len(table), np.nan)
            column[rows] = values
            bad = np.zeros(len(table), np.bool_)
            bad[rows] = ~np.isfinite(values)
            found[name] = (column, bad)
    newest = newest_rows(table.step)
    steps = table.step[newest].astype(np.float64)
    inside = (steps >= first_step) & (steps <= last_step)
    rows, steps = newest[inside], steps[inside]
    by_name = {
        name: _curve(steps, values[rows], bad[rows])
        for name, (values, bad) in found.items()
        if name in names
    }
    return _of(table, every, by_name)


def curves_of(run_data: RunData) -> Curves:
    """Returns all curves of what a report has read."""
    table = run_data.steps
    if not len(table):
        return Curves(names=(), by_name={})
    rows = newest_rows(table.step)
    steps = table.step[rows].astype(np.float64)
    by_name = {
        name: _curve(steps, values[rows], bad[rows])
        for name, (values, bad) in _measured(table).items()
    }
    courses = dict(islice(run_data.courses.items(), MOST_OWN))
    buckets = min(BUCKETS, OWN_POINTS // (2 * max(1, len(courses))))
    for name, course in courses.items():
        newest = newest_rows(course.steps.astype(np.int64))
        x, y = thin(course.steps[newest], course.values[newest], buckets)
        bad = thin_marks(np.unique(course.nonfinite), buckets)
        by_name[name] = Curve(steps=x, values=y, nonfinite=bad)
    return _of(table, tuple(by_name), by_name)


def _of(table: StepTable, names: tuple[str, ...], by_name: dict[str, Curve]) -> Curves:
    return Curves(
        names=names,
        by_name=by_name,
        first_step=int(table.step.min()),
        last_step=int(table.step.max()),
    )


def _curve(steps: Floats, values: Floats, bad: Bools) -> Curve:
    x, y = thin(steps, values)
    return Curve(steps=x, values=y, nonfinite=thin_marks(steps[bad]))


def _measured(table: StepTable) -> dict[str, tuple[Floats, Bools]]:
    """Returns name → values and where they were seen and not finite, of those with any value."""
    none = np.zeros(len(table), np.bool_)
    bad = {"loss": table.nonfinite_loss, "grad_norm": table.nonfinite_grad}
    columns = {name: (getattr(table, name), bad.get(name, none)) for name in MEASURED}
    if bool((table.rate_factor != 1.0).any()):
        columns[APPLIED_RATE] = (table.lr * table.rate_factor, none)
    return {n: (y, bad) for n, (y, bad) in columns.items() if np.isfinite(y).any() or bad.any()}


def _observed(
    reader: FlightReader, names: Collection[str], stop: int
) -> dict[str, tuple[np.ndarray | None, Floats]]:
    """Returns name → rows and values of the script's own values; no rows of those not asked for."""
    known = dict(enumerate(reader.known_names()))
    parts: dict[int, list[tuple[np.ndarray, Floats]]] = {}
    for slot, rows, values in observed_parts(reader, stop):
        kept = parts.setdefault(slot, [])
        if known.get(slot, f"observed_{slot}") in names:
            kept.append((rows, values))
    return {
        known.get(slot, f"observed_{slot}"): _joined(found) for slot, found in sorted(parts.items())
    }


def _joined(parts: list[tuple[np.ndarray, Floats]]) -> tuple[np.ndarray | None, Floats]:
    if not parts:
        return None, np.zeros(0)
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([v for _, v in parts])
