"""What the script observed and the looks inside the model saw, over the whole run.

A run may hold a hundred million values; a picture and a table need few of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.ranks import FIRST_RANK
from supervisor.report.facts import figures as palette
from supervisor.report.facts.step_table import BUCKETS, Floats, Ints, thin, thin_marks
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightReader
from supervisor.storage.steps.step_rows import OBSERVED_SHIFT, OBSERVED_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One observed value over a run.

    Attributes:
        steps, values: the lowest and the highest finite value of each bucket of rows, in the order
            of time; all of them if there are fewer than 2 a bucket.
        count: finite values in all.
        first, last: the first and the last finite value.
        nonfinite: steps at which it was NaN or infinite, one a bucket.
    """

    steps: Floats
    values: Floats
    count: int
    first: float
    last: float
    nonfinite: Floats


def read_courses(root: Path) -> dict[str, Course]:
    """Returns name → course of everything that rank 0 observed; empty if nothing can be read."""
    path = RunDirectory(root).steps(FIRST_RANK)
    try:
        with FlightReader(path) as reader:
            steps = reader.read_fields(("step",))["step"]
            thinned: dict[int, _Thinned] = {}
            for slot, rows, values in observed_parts(reader, len(steps)):
                thinned.setdefault(slot, _Thinned()).add(rows, values)
            names = dict(enumerate(reader.known_names()))
    except Exception:  # whoever reads the steps reports a damaged file
        return {}
    found = {
        names.get(slot, f"observed_{slot}"): one.course(steps)
        for slot, one in sorted(thinned.items())
    }
    return {name: course for name, course in found.items() if course.count or len(course.nonfinite)}


def observed_parts(reader: FlightReader, stop: int) -> Iterator[tuple[int, Ints, Floats]]:
    """Yields slot, rows and values of what was observed, piece by piece; rows of a slot ascend."""
    for start, chunk in reader.chunks(stop):
        seen = chunk["flags"] >> OBSERVED_SHIFT
        for slot in range(OBSERVED_SLOTS):
            rows = np.flatnonzero(seen >> slot & 1)
            if len(rows):
                yield slot, rows + start, chunk["observed"][rows, slot]
    for entries in reader.more_chunks(stop):
        order = np.argsort(entries["slot"], kind="stable")  # rows stay in order
        for part in np.split(order, np.flatnonzero(np.diff(entries["slot"][order])) + 1):
            if len(part):
                slot = int(entries["slot"][part[0]])
                yield slot, entries["row"][part].astype(np.int64), entries["value"][part]


class _Thinned:
    """What is kept of one value so far: rows and values, thinned whenever there are many."""

    def __init__(self) -> None:
        self.rows = self.values = self.bad = np.zeros(0)
        self.count = 0

    def add(self, rows: Ints, values: Floats) -> None:
        """Adds some values; `rows` must ascend."""
        known = np.isfinite(values)
        self.count += int(known.sum())
        self.bad = thin_marks(np.concatenate([self.bad, rows[~known]]), BUCKETS)
        self.rows = np.concatenate([self.rows, rows[known]])
        self.values = np.concatenate([self.values, values[known]])
        if len(self.values) > 4 * BUCKETS:
            self.rows, self.values = thin(self.rows, self.values, BUCKETS)

    def course(self, steps: Ints) -> Course:
        rows, values = thin(self.rows, self.values, BUCKETS)
        return Course(
            steps=steps[rows.astype(np.int64)].astype(np.float64),
            values=values,
            count=self.count,
            first=float(values[0]) if self.count else math.nan,
            last=float(values[-1]) if self.count else math.nan,
            nonfinite=steps[self.bad.astype(np.int64)].astype(np.float64),
        )


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
