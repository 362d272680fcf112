"""What the script observed and the looks inside the model saw, over the whole run.

The courses of the observed values of a run, thinned while they are read.

A run may hold a hundred million values; a picture and a table need few of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from supervisor.ranks import FIRST_RANK
from supervisor.report.facts import figures as palette
from supervisor.report.facts.step_table import Floats
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightReader
from supervisor.storage.steps.step_rows import OBSERVED_SHIFT, OBSERVED_SLOTS

BUCKETS = 900
"""Into how many buckets rows are sorted; each keeps its lowest and highest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One observed value over a run.

    Attributes:
        steps, values: the lowest and the highest finite value of each bucket of rows, in the order
            of time; all values of a run with fewer than 2 rows a bucket.
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
            rows = reader.rows()
            width = max(1, -(-rows // BUCKETS))
            thinned: dict[int, _Thinned] = {}
            steps = np.zeros(rows, np.int64)
            for start, chunk in reader.chunks(rows):
                steps[start : start + len(chunk)] = chunk["step"]
                _take_in_slots(thinned, chunk, start, width)
            for entries in reader.more_chunks(rows):
                _take_in_more(thinned, entries, width)
            names = dict(enumerate(reader.known_names()))
    except Exception:  # whoever reads the steps reports a damaged file
        return {}
    found = {
        names.get(slot, f"observed_{slot}"): one.course(steps)
        for slot, one in sorted(thinned.items())
    }
    return {name: course for name, course in found.items() if course.count or len(course.nonfinite)}


class _Thinned:
    """What is kept of one value so far."""

    def __init__(self) -> None:
        self.low = np.full(BUCKETS, np.inf)
        self.high = np.full(BUCKETS, -np.inf)
        self.low_row = np.full(BUCKETS, -1, np.int64)
        self.high_row = np.full(BUCKETS, -1, np.int64)
        self.bad_row = np.full(BUCKETS, -1, np.int64)
        self.count = 0
        self.first = self.last = math.nan

    def add(self, rows: npt.NDArray[np.int64], values: Floats, width: int) -> None:
        """Adds some values; `rows` must ascend."""
        known = np.isfinite(values)
        bad = rows[~known]
        self.bad_row[bad // width] = bad
        rows, values = rows[known], values[known]
        if not len(rows):
            return
        self.first = self.first if self.count else float(values[0])
        self.last = float(values[-1])
        self.count += len(values)
        buckets = rows // width
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        places = buckets[starts]
        for pick, best, at, sign in (
            (np.minimum, self.low, self.low_row, 1.0),
            (np.maximum, self.high, self.high_row, -1.0),
        ):
            found = pick.reduceat(values, starts)
            better = sign * found < sign * best[places]
            # Of equal values the first, as argmin chooses.
            sizes = np.diff(np.append(starts, len(values)))
            hits = np.flatnonzero(values == np.repeat(found, sizes))
            _, firsts = np.unique(buckets[hits], return_index=True)
            at[places[better]] = rows[hits[firsts]][better]
            best[places[better]] = found[better]

    def course(self, steps: npt.NDArray[np.int64]) -> Course:
        seen = np.isfinite(self.low)
        rows = np.concatenate([self.low_row[seen], self.high_row[seen]])
        values = np.concatenate([self.low[seen], self.high[seen]])
        rows, index = np.unique(rows, return_index=True)
        return Course(
            steps=steps[rows].astype(np.float64),
            values=values[index],
            count=self.count,
            first=self.first,
            last=self.last,
            nonfinite=steps[self.bad_row[self.bad_row >= 0]].astype(np.float64),
        )


def _take_in_slots(
    thinned: dict[int, _Thinned], chunk: npt.NDArray[np.void], start: int, width: int
) -> None:
    seen = chunk["flags"] >> OBSERVED_SHIFT
    any_seen = int(np.bitwise_or.reduce(seen)) if len(seen) else 0
    for slot in range(OBSERVED_SLOTS):
        if any_seen >> slot & 1:
            rows = np.flatnonzero(seen >> slot & 1)
            values = np.ascontiguousarray(chunk["observed"][rows, slot])
            thinned.setdefault(slot, _Thinned()).add(rows + start, values, width)


def _take_in_more(thinned: dict[int, _Thinned], entries: npt.NDArray[np.void], width: int) -> None:
    order = np.argsort(entries["slot"].astype(np.uint16), kind="stable")  # rows stay in order
    slots = entries["slot"][order]
    for part in np.split(order, np.flatnonzero(np.diff(slots)) + 1):
        if len(part):
            one = thinned.setdefault(int(entries["slot"][part[0]]), _Thinned())
            one.add(entries["row"][part].astype(np.int64), entries["value"][part], width)


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
