"""What the script observed and the looks inside the model saw, over the whole run (C5)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.report import palette
from supervisor.report.step_table import Floats
from supervisor.storage.flight_recorder import FlightReader
from supervisor.storage.rundir import RunDirectory
from supervisor.storage.step_rows import OBSERVED_SHIFT

COLUMNS = 3
MAX_PANELS = 48
"""More are in the table alone: the picture would be too tall to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedValue:
    """The course of one observed value.

    Attributes:
        count: steps at which it was observed; those that were not finite are left out of the rest.
    """

    name: str
    count: int
    first: float
    lowest: float
    highest: float
    last: float


Course = tuple[Floats, Floats]
"""Steps, values; both in the order of time, finite values alone."""


def read_courses(root: Path) -> dict[str, Course]:
    """Returns name → course of everything that rank 0 observed; empty if nothing can be read."""
    path = RunDirectory(root).steps(0)
    try:
        with FlightReader(path) as reader:
            rows, names = reader.read(), reader.names()
            more = reader.more(stop=len(rows))
    except Exception:  # a damaged file is named by whoever reads the steps
        return {}
    found: dict[str, Course] = {}
    seen = rows["flags"] >> OBSERVED_SHIFT
    for slot, name in enumerate(names):
        values = np.asarray(rows["observed"][:, slot], dtype=np.float64)
        chosen = ((seen >> slot) & 1).astype(bool) & np.isfinite(values)
        if chosen.any():
            found[name] = (np.asarray(rows["step"][chosen], dtype=np.float64), values[chosen])
    further: dict[str, list[tuple[float, float]]] = {}
    for row, name, value in more:
        if np.isfinite(value):
            further.setdefault(name, []).append((float(rows["step"][row]), value))
    return found | {name: _course(values) for name, values in further.items()}


def _course(values: list[tuple[float, float]]) -> Course:
    steps, figures = np.asarray(values, dtype=np.float64).T
    return steps, figures


def sum_up(courses: dict[str, Course]) -> tuple[ObservedValue, ...]:
    return tuple(
        ObservedValue(
            name=name,
            count=len(values),
            first=float(values[0]),
            lowest=float(values.min()),
            highest=float(values.max()),
            last=float(values[-1]),
        )
        for name, (_, values) in courses.items()
    )


def draw_courses(figure: Any, courses: dict[str, Course]) -> bool:
    """Draws one small panel for each value; returns False when there is nothing to draw."""
    curves = (item for item in courses.items() if len(item[1][0]) > 1)
    drawn = dict(islice(curves, MAX_PANELS))
    if not drawn:
        return False
    lines = -(-len(drawn) // COLUMNS)
    figure.set_size_inches(9.6, 0.5 + 1.5 * lines)
    axes = figure.subplots(lines, COLUMNS, sharex=True, squeeze=False).ravel()
    for axis, (name, (steps, values)) in zip(axes, drawn.items(), strict=False):
        order = np.argsort(steps, kind="stable")  # what a restart repeated lies in between
        steps, values = steps[order], values[order]
        axis.plot(steps, values, color=palette.SCALE, linewidth=1.0, marker=".", markersize=2)
        axis.set_title(name.replace("_", " "))
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    return True
