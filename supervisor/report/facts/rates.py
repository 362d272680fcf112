"""Where the learning rate that was applied was not the one that the script asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from supervisor.report.facts.step_table import StepTable

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
