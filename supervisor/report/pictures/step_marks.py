"""Treatments, rollbacks and restarts along the steps of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.report.facts import palette
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.interventions import is_treatment

LINES = 12
"""More of a kind than this are drawn as bands: a fence of lines hides the curve."""
NEAR = 0.02
"""Marks this close together, as a share of all steps, make one band."""


def marks_of(report: CrashReport) -> dict[str, tuple[str, list[int]]]:
    """Returns what is marked: name → colour and steps."""
    marks: dict[str, tuple[str, list[int]]] = {
        "treatment": (palette.TREATMENT, []),
        "rollback": (palette.ROLLBACK, []),
        "restart": (palette.RESTART, []),
    }
    for item in report.interventions:
        if item.step is None or item.name == "restart" or not is_treatment(item):
            continue
        marks["rollback" if item.name == "rollback" else "treatment"][1].append(item.step)
    for earlier, later in zip(report.attempts, report.attempts[1:], strict=False):
        step = earlier.last_step if earlier.last_step is not None else later.first_step
        if step is not None:
            marks["restart"][1].append(step)
    return {name: (colour, sorted(set(steps))) for name, (colour, steps) in marks.items() if steps}


def draw_marks(axis: Any, report: CrashReport) -> None:
    """Draws a line for each of a few marks of a kind, and bands for many."""
    span = (report.last_step or 0) - (report.first_step or 0)
    for colour, steps in marks_of(report).values():
        bands = [(step, step) for step in steps]
        if len(steps) > LINES:
            bands = bands_of(steps, near=NEAR * span)
        for first, last in bands:
            if first == last:
                axis.axvline(first, color=colour, linewidth=0.9, linestyle=(0, (4, 2)), alpha=0.85)
            else:
                axis.axvspan(first, last, color=colour, alpha=0.16, linewidth=0)


def bands_of(steps: Sequence[int], *, near: float) -> list[tuple[int, int]]:
    """Returns first and last step of each group of rising `steps` with no gap above `near`."""
    bands: list[tuple[int, int]] = []
    for step in steps:
        if bands and step - bands[-1][1] <= near:
            bands[-1] = (bands[-1][0], step)
        else:
            bands.append((step, step))
    return bands
