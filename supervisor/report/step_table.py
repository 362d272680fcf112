"""The recorded steps of a run as columns, and what became of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from supervisor.storage.flight_recorder import (
    GRAD_SEEN,
    LOSS_SEEN,
    SCALER_SKIPPED,
    UPDATE_SKIPPED,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Columns of equal length, in the order in which the steps happened, all attempts.

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

    def __len__(self) -> int:
        return len(self.step)

    @property
    def final(self) -> StepTable:
        """Each step once, as it happened last, in the order of steps."""
        if not len(self):
            return self
        reverse = self.step[::-1]
        _, last = np.unique(reverse, return_index=True)
        return self.take(len(self) - 1 - last)

    def take(self, chosen: Any) -> StepTable:
        """Returns the rows that an index array, a slice or a mask chooses."""
        return StepTable(**{name: getattr(self, name)[chosen] for name in self.__slots__})

    def until(self, step: int | None) -> StepTable:
        return self if step is None else self.take(self.step <= step)

    def of_attempt(self, attempt: int | None) -> StepTable:
        return self if attempt is None else self.take(self.attempt == attempt)


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
        step=ints("step"),
        attempt=ints("attempt"),
        time=floats("time"),
        loss=loss,
        grad_norm=grad_norm,
        lr=floats("lr"),
        loss_scale=floats("loss_scale"),
        step_time_s=floats("step_time_s"),
        memory_gib=floats("memory_gib"),
        risk=floats("risk"),
        nonfinite_loss=_has(flags, LOSS_SEEN) & ~np.isfinite(loss),
        nonfinite_grad=_has(flags, GRAD_SEEN) & ~np.isfinite(grad_norm),
        scaler_skipped=_has(flags, SCALER_SKIPPED),
        skipped=_has(flags, UPDATE_SKIPPED),
        rate_factor=factors,
    )


def empty_step_table() -> StepTable:
    return build_step_table(np.zeros(0, dtype=[("step", np.int64)]))


def _has(flags: Ints, bit: int) -> Bools:
    present: Bools = (flags & bit) != 0
    return present
