"""The figures of one judge on one split."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.scorecard.alarms import Tally, tally
from benchmarks.scorecard.judged_course import LATE
from benchmarks.scorecard.measurement import Measurement

Judge = Callable[[Measurement], np.ndarray]
"""From a run's measurement to whether each step is an alarm."""


LONG = 100
"""Steps from first sign to peak of a slow collapse, and by which it is to be seen before."""


def card(measured: Sequence[Measurement], judge: Judge) -> dict[str, Any]:
    """Recall, false alarms, leads; leads are steps from the first alarm to the peak.

    False alarms in runs to which nothing was done are given once more by themselves: where a
    disturbance healed before it became a crash, an alarm was false by its outcome alone.
    """
    tallies = [tally(m.run, judge(m)) for m in measured]
    crashes = [(m, t) for m, t in zip(measured, tallies, strict=True) if m.run.outcome.crashed]
    building = [(m, t) for m, t in crashes if m.run.builds_up]
    slow = [(m, t) for m, t in crashes if m.run.outcome.peak - m.run.outcome.onset > 20]
    healthy = int(sum(m.run.healthy.sum() for m in measured))
    leads = sorted(_lead(m, t) for m, t in crashes if t.first >= 0)
    longest = [t for t in slow if t[0].run.outcome.peak - t[0].run.outcome.onset >= LONG]
    slow_leads = [_lead(m, t) for m, t in slow if t.first >= 0]
    left = [
        min(1.0, _lead(m, t) / (m.run.outcome.peak - m.run.outcome.onset))
        for m, t in building
        if t.first >= 0
    ]
    return {
        "healthy_steps": healthy,
        "false_alarms": sum(t.false for t in tallies),
        "false_per_10k": round(1e4 * sum(t.false for t in tallies) / max(1, healthy), 2),
        "undisturbed_per_10k": _undisturbed(measured, tallies),
        "alarms_on_healed_excursions": sum(t.healed for t in tallies),
        "crashes": len(crashes),
        "found_before_peak": sum(t.first >= 0 for _, t in crashes),
        "found_at_most_5_later": sum(t.first >= 0 or t.late for _, t in crashes),
        "crashes_that_build_up": len(building),
        "found_of_these": sum(t.first >= 0 for _, t in building),
        "lead_quartiles": _quartiles(leads),
        "crashes_over_20_steps": len(slow),
        "median_lead_of_these": statistics.median(slow_leads) if slow_leads else None,
        "crashes_over_100_steps": len(longest),
        "of_these_found_100_ahead": sum(t.first >= 0 and _lead(m, t) >= LONG for m, t in longest),
        "median_share_left": round(statistics.median(left), 2) if left else None,
    }


def decisions(measured: Sequence[Measurement]) -> dict[str, int]:
    """What our ladder decided at healthy steps, updates that are left out included, and how many
    crashes it met until `LATE` steps after their peak."""
    healthy = [int((m.decisions & m.run.healthy).sum()) for m in measured]
    crashes = [m for m in measured if m.run.outcome.crashed]
    return {
        "runs": len(measured),
        "decisions": sum(healthy),
        "in_runs": sum(1 for count in healthy if count),
        "crashes": len(crashes),
        "met": sum(_is_met(m) for m in crashes),
    }


def grouped(measured: Sequence[Measurement], judge: Judge, key: str) -> dict[str, list[int]]:
    """Value of the recipe's field `key` → [crashes found before the peak, at most 5 steps later,
    crashes, false alarms, decisions at healthy steps]."""
    rows: dict[str, list[int]] = {}
    for m in measured:
        found = tally(m.run, judge(m))
        row = rows.setdefault(str(getattr(m.run.trace.recipe, key)), [0, 0, 0, 0, 0])
        row[0] += found.first >= 0
        row[1] += found.first >= 0 or found.late
        row[2] += m.run.outcome.crashed
        row[3] += found.false
        row[4] += int((m.decisions & m.run.healthy).sum())
    return dict(sorted(rows.items()))


def _is_met(measured: Measurement) -> bool:
    first, peak = measured.run.window
    return bool(measured.decisions[first : peak + LATE + 1].any())


def _undisturbed(measured: Sequence[Measurement], tallies: Sequence[Tally]) -> float:
    left_alone = [
        (m, t) for m, t in zip(measured, tallies, strict=True) if not m.run.trace.recipe.sick
    ]
    steps = sum(int(m.run.healthy.sum()) for m, _ in left_alone)
    return round(1e4 * sum(t.false for _, t in left_alone) / max(1, steps), 2)


def _lead(measured: Measurement, found: Tally) -> int:
    return measured.run.outcome.peak - found.first


def _quartiles(values: Sequence[int]) -> list[float] | None:
    return [float(q) for q in np.percentile(values, [25, 50, 75])] if values else None
