"""What the script observed and the looks inside the model saw, over the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from supervisor.report.facts import palette
from supervisor.report.facts.observed_courses import Course

COLUMNS = 3
LETTERS = 330.0
"""Points that a title's letters may have together, or it runs into the next one."""
MAX_PANELS = 48
"""More are in the table alone: the picture would be too tall to look at."""
MOST_DOTS = 120
"""Up to so many points a small panel shows dots; more are drawn as a line."""


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


def sum_up(courses: dict[str, Course]) -> tuple[ObservedValue, ...]:
    return tuple(
        ObservedValue(
            name=name,
            count=course.count,
            first=course.first,
            lowest=float(course.values.min()),
            highest=float(course.values.max()),
            last=course.last,
        )
        for name, course in courses.items()
        if course.count
    )


def draw_courses(figure: Any, courses: dict[str, Course]) -> bool:
    """Draws one small panel for each value; returns False when there is nothing to draw."""
    curves = (item for item in courses.items() if item[1].count > 1)
    drawn = dict(islice(curves, MAX_PANELS))
    if not drawn:
        return False
    lines = -(-len(drawn) // COLUMNS)
    figure.set_size_inches(9.6, 0.5 + 1.5 * lines)
    axes = figure.subplots(lines, COLUMNS, sharex=True, squeeze=False).ravel()
    for axis, (name, course) in zip(axes, drawn.items(), strict=False):
        _draw_course(axis, course)
        axis.set_title(name.replace("_", " "), fontsize=min(9.5, LETTERS / len(name)))
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    return True


def _draw_course(axis: Any, course: Course) -> None:
    order = np.argsort(course.steps, kind="stable")  # steps that a restart repeated lie in between
    marker = "." if len(order) <= MOST_DOTS else None
    steps, values = course.steps[order], course.values[order]
    axis.plot(steps, values, color=palette.SCALE, linewidth=1.0, marker=marker, markersize=2)
    if len(course.nonfinite):
        axis.plot(
            course.nonfinite,
            np.full(len(course.nonfinite), 0.97),
            linestyle="none",
            marker="x",
            markersize=4,
            color=palette.RISK,
            transform=axis.get_xaxis_transform(),
            clip_on=False,
        )
