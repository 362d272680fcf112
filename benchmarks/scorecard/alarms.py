"""From evidence to counted alarms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.scorecard.labelled_run import LabelledRun
from supervisor.analysis.backtest.backtest import REARM_STEPS


def raised(alarm: np.ndarray) -> np.ndarray:
    """Steps at which an alarm is raised: it re-arms after 50 calm steps, for every judge alike."""
    steps = np.flatnonzero(alarm)
    if not len(steps):
        return steps
    return steps[np.concatenate([[True], np.diff(steps) > REARM_STEPS])]


@dataclass(frozen=True)
class Tally:
    """What the alarms of one judge are worth on one run.

    Attributes:
        false: alarms raised at healthy steps.
        healed: alarms raised in excursions that healed by themselves.
        first: first step in alarm from 20 steps before the onset to before the peak, or -1.
        late: in alarm within five steps after the peak, if `first` is -1.
    """

    false: int
    healed: int
    first: int
    late: bool


def tally(run: LabelledRun, alarm: np.ndarray) -> Tally:
    steps = raised(alarm)
    healed = sum(
        bool(first <= step <= last) for step in steps for first, last in run.outcome.excursions
    )
    first, late = -1, False
    if run.outcome.crashed:
        start, peak = run.window
        inside = np.flatnonzero(alarm[start:peak])
        first = start + int(inside[0]) if len(inside) else -1
        late = first < 0 and bool(alarm[peak : peak + 6].any())
    return Tally(int(run.healthy[steps].sum()), healed, first, late)
