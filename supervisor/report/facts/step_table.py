"""The recorded steps of a run as columns, and what became of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from supervisor.storage.steps.flight_recorder import (
    GRAD_SEEN,
    LOSS_SEEN,
    SCALER_SKIPPED,
    UPDATE_SKIPPED,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

FIELDS = (
    *("step", "attempt", "flags", "time", "loss", "grad_norm", "lr", "loss_scale", "step_time_s"),
    *("memory_gib", "risk"),
)
"""Fields of the flight recorder that a report reads of every step."""


class StepTable:
    """Columns of equal length, in the order in which the steps happened, all attempts.

    A selection keeps row numbers and gathers a column only when asked for it: copies of all columns
    of a long run would fill the memory.

    Attributes:
        time: seconds since 1970.
        nonfinite_loss, nonfinite_grad: the value was seen, and was NaN or infinite.
        skipped: the update was left out by the guard.
        rate_factor: by what the learning rate was multiplied for the update.
    """

    step: Ints
    attempt: Ints
    time: Floats
    loss: Floats
    grad_norm: Floats
    lr: Floats
    loss_scale: Floats
    step_time_s: Floats
    memory_gib: Floats
    risk: Floats
    nonfinite_loss: Bools
    nonfinite_grad: Bools
    scaler_skipped: Bools
    skipped: Bools
    rate_factor: Floats

    def __init__(
        self, columns: Mapping[str, npt.NDArray[Any]], chosen: Ints | slice | None = None
    ) -> None:
        self._columns = columns
        self._chosen = chosen
        self._final: StepTable | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._columns:
            raise AttributeError(name)
        column = self._columns[name]
        return column if self._chosen is None else column[self._chosen]

    def __len__(self) -> int:
        if isinstance(self._chosen, np.ndarray):
            return len(self._chosen)
        return len(self.step)

    @property
    def final(self) -> StepTable:
        """Each step once, as it happened last, in the order of steps."""
        if self._final is None:
            self._final = self._find_final()
        return self._final

    def _find_final(self) -> StepTable:
        steps = self.step
        if not len(steps) or bool((np.diff(steps) > 0).all()):
            return self
        return self.take(newest_rows(steps))

    def take(self, chosen: Any) -> StepTable:
        """Returns the rows that an index array, a slice or a mask chooses."""
        rows = chosen if isinstance(chosen, slice) else _numbers(np.asarray(chosen))
        if self._chosen is not None:
            rows = np.arange(len(self._columns["step"]))[self._chosen][rows]
        return StepTable(self._columns, rows)

    def replace(self, **columns: npt.NDArray[Any]) -> StepTable:
        """Returns the same rows with other columns of the same length."""
        return StepTable({name: getattr(self, name) for name in self._columns} | columns)

    def until(self, step: int | None) -> StepTable:
        return self if step is None else self.take(self.step <= step)

    def of_attempt(self, attempt: int | None) -> StepTable:
        return self if attempt is None else self.take(self.attempt == attempt)


def newest_rows(steps: Ints) -> Ints:
    """Returns the rows of the last time of each step, in the order of steps."""
    _, last = np.unique(steps[::-1], return_index=True)
    rows: Ints = len(steps) - 1 - last
    return rows


def build_step_table(rows: npt.NDArray[Any], rates: Mapping[int, float] | None = None) -> StepTable:
    """Makes columns of the flight recorder's rows; a field that is missing becomes NaN or 0.

    `rates`: row → factor of those whose learning rate was changed.
    """
    names = rows.dtype.names or ()
    length = len(rows)

    def floats(name: str) -> Floats:
        if name not in names:
            return np.full(length, np.nan)
        return np.asarray(rows[name], dtype=np.float64)

    def ints(name: str) -> Ints:
        if name not in names:
            return np.zeros(length, dtype=np.int64)
        return np.asarray(rows[name], dtype=np.int64)

    factors = np.ones(length)
    for row, factor in (rates or {}).items():
        if row < length:
            factors[row] = factor
    flags = ints("flags")
    loss, grad_norm = floats("loss"), floats("grad_norm")
    return StepTable(
        {
            "step": ints("step"),
            "attempt": ints("attempt"),
            "time": floats("time"),
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": floats("lr"),
            "loss_scale": floats("loss_scale"),
            "step_time_s": floats("step_time_s"),
            "memory_gib": floats("memory_gib"),
            "risk": floats("risk"),
            "nonfinite_loss": _has(flags, LOSS_SEEN) & ~np.isfinite(loss),
            "nonfinite_grad": _has(flags, GRAD_SEEN) & ~np.isfinite(grad_norm),
            "scaler_skipped": _has(flags, SCALER_SKIPPED),
            "skipped": _has(flags, UPDATE_SKIPPED),
            "rate_factor": factors,
        }
    )


def empty_step_table() -> StepTable:
    return build_step_table(np.zeros(0, dtype=[("step", np.int64)]))


def _numbers(chosen: npt.NDArray[Any]) -> Ints | slice:
    """The rows of a mask as numbers, or as a slice if they are contiguous."""
    if chosen.dtype != np.bool_:
        return chosen.astype(np.int64)
    rows: Ints = np.flatnonzero(chosen)
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _has(flags: Ints, bit: int) -> Bools:
    present: Bools = (flags & bit) != 0
    return present


SHOWN = 12
"""At most so many stretches are listed, the longest ones."""
BREAK_STEPS = 2
"""A gap of so many steps does not end a stretch: an update that was left out has no rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """A stretch of steps whose updates had another rate than the script's.

    Attributes:
        steps: how many of them there were.
        asked_low, asked_high: rates that the script asked for.
        applied_low, applied_high: rates of the updates.
    """

    first_step: int
    last_step: int
    steps: int
    asked_low: float
    asked_high: float
    applied_low: float
    applied_high: float


def find_rate_changes(table: StepTable) -> tuple[RateChange, ...]:
    """Returns the stretches in the order of steps; if a step was made twice, the last time
    counts."""
    steps = table.final
    changed = steps.take((steps.rate_factor != 1.0) & np.isfinite(steps.lr))
    if not len(changed):
        return ()
    ends = np.flatnonzero(np.diff(changed.step) > BREAK_STEPS) + 1
    parts = np.split(np.arange(len(changed)), ends)
    longest = sorted(parts, key=len, reverse=True)[:SHOWN]
    return tuple(
        _stretch(changed.take(part)) for part in sorted(longest, key=lambda part: int(part[0]))
    )


def _stretch(rows: StepTable) -> RateChange:
    applied = rows.lr * rows.rate_factor
    return RateChange(
        first_step=int(rows.step[0]),
        last_step=int(rows.step[-1]),
        steps=len(rows),
        asked_low=float(rows.lr.min()),
        asked_high=float(rows.lr.max()),
        applied_low=float(applied.min()),
        applied_high=float(applied.max()),
    )


BUCKETS = 900
"""Twice as many points as this are drawn: a picture is about 900 pixels wide."""


def thin(x: Floats, y: Floats, buckets: int = BUCKETS) -> tuple[Floats, Floats]:
    """Keeps the smallest and the largest finite value of each bucket, so that spikes stay."""
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if len(y) <= 2 * buckets:
        return x, y
    edges = np.linspace(0, len(y), buckets + 1).astype(np.int64)
    bucket = np.searchsorted(edges, np.arange(len(y)), side="right")
    order = np.lexsort((y, bucket))
    chosen = np.unique([0, len(y) - 1, *order[edges[:-1]], *order[edges[1:] - 1]])
    return x[chosen], y[chosen]


def thin_marks(x: Floats, buckets: int = BUCKETS) -> Floats:
    """Keeps one of the marks that would cover each other: the first of each bucket of `x`."""
    if len(x) <= buckets:
        return x
    low, high = float(x.min()), float(x.max())
    places = ((x - low) / ((high - low) or 1.0) * (buckets - 1)).astype(np.int64)
    _, first = np.unique(places, return_index=True)
    chosen: Floats = x[first]
    return chosen
