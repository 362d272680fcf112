"""The pictures of a report: the whole run by steps, gradient flow, observed values."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from supervisor.report.facts import figures as palette
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.figures import number
from supervisor.report.facts.interventions import is_treatment
from supervisor.report.facts.observed_values import draw_courses
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import (
    Bools,
    Floats,
    StepTable,
    newest_rows,
    thin,
    thin_marks,
)

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


CALM_RISK = 0.1
"""In a healthy run a risk that was never higher is not worth a panel."""
_LEFT, _RIGHT, _ABOVE, _BELOW, _BETWEEN = 0.75, 0.15, 0.4, 0.5, 0.38
"""Inches of an overview around and between its panels, for ticks and titles."""
WIDTH_INCHES = 9.6
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": palette.INK,
    "axes.edgecolor": palette.GRID,
    "axes.labelcolor": palette.MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": palette.GRID,
    "grid.linewidth": 0.7,
    "xtick.color": palette.MUTED,
    "ytick.color": palette.MUTED,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "figure.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture, as a file."""

    name: str
    png: bytes


def draw_pictures(
    run_data: RunData, report: CrashReport, names: Collection[str] = ("overview",)
) -> tuple[Picture, ...]:
    """Draws those of `names` for which there is data; imports matplotlib, which takes half a second
    of processor time, here."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pictures = []
    for name in names:
        with matplotlib.rc_context(STYLE):
            # Finding room for everything draws a picture several times: every run's is laid out.
            figure = Figure(layout=None if name == "overview" else "constrained")
            FigureCanvasAgg(figure)
            if _DRAWINGS[name](figure, run_data, report):
                png = io.BytesIO()
                figure.savefig(png, format="png", dpi=130, facecolor="white")
                pictures.append(Picture(name, png.getvalue()))
    return tuple(pictures)


def draw_overview(figure: Any, run_data: RunData, report: CrashReport) -> bool:
    """Draws the whole run by steps; returns False when there is nothing to draw."""
    rows = run_data.steps
    panels = [
        ("Loss", rows.loss, palette.LOSS, rows.nonfinite_loss),
        ("Gradient norm", rows.grad_norm, palette.GRADIENT, rows.nonfinite_grad),
        ("Learning rate", rows.lr, palette.RATE, None),
        ("Loss scale", rows.loss_scale, palette.SCALE, None),
        ("Crash risk", rows.risk, palette.RISK, None),
    ]
    panels = [p for p in panels if np.isfinite(p[1]).any() or (p[3] is not None and p[3].any())]
    if report.root_cause == "none":
        panels = [panel for panel in panels if not _is_flat(panel[0], panel[1])]
    if not panels:
        return False
    heights = [1.7 if title in ("Loss", "Gradient norm") else 0.9 for title, *_ in panels]
    height = _ABOVE + _BELOW + sum(heights) + _BETWEEN * (len(panels) - 1)
    figure.set_size_inches(WIDTH_INCHES, height)
    figure.subplots_adjust(
        left=_LEFT / WIDTH_INCHES,
        right=1.0 - _RIGHT / WIDTH_INCHES,
        bottom=_BELOW / height,
        top=1.0 - _ABOVE / height,
        hspace=_BETWEEN * len(panels) / sum(heights),
    )
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    newest = np.zeros(len(rows), dtype=bool)
    newest[newest_rows(rows.step)] = True
    for axis, (title, values, colour, bad) in zip(axes, panels, strict=True):
        _panel(axis, rows, values, colour, newest, bad)
        axis.set_title(title)
        if title == "Crash risk":
            axis.set_ylim(-0.03, 1.03)
        elif title in ("Loss", "Gradient norm"):
            _choose_scale(axis, values)
        elif title == "Learning rate" and report.rate_changes:
            _applied_rate(axis, rows.final)
            _choose_scale(axis, np.concatenate([values, rows.lr * rows.rate_factor]))
        draw_marks(axis, report)
    axes[-1].set_xlabel("step")
    any_bad = bool((rows.nonfinite_loss | rows.nonfinite_grad).any())
    _legend(figure, report, has_lost=bool((~newest).any()), bad=any_bad)
    return True


def _is_flat(title: str, values: Floats) -> bool:
    """Whether there is nothing to see in it: a steady rate or loss scale, a risk near zero."""
    known = values[np.isfinite(values)]
    if title == "Crash risk":
        return bool(known.max() < CALM_RISK)
    return title in ("Learning rate", "Loss scale") and bool(known.min() == known.max())


def _applied_rate(axis: Any, rows: StepTable) -> None:
    """Draws the rate of the updates over the one that the script asked for."""
    applied = np.where(rows.rate_factor != 1.0, rows.lr * rows.rate_factor, np.nan)
    axis.plot(
        *thin(rows.step.astype(np.float64), applied),
        color=palette.TREATMENT,
        linewidth=2.0,
        label="applied",
    )
    axis.plot([], [], color=palette.RATE, label="asked for by the script")
    axis.legend(loc="upper right", ncols=2)


def _panel(
    axis: Any, rows: StepTable, values: Floats, colour: str, newest: Bools, bad: Bools | None
) -> None:
    steps = rows.step.astype(np.float64)
    for attempt in np.unique(rows.attempt[~newest]):
        lost = (rows.attempt == attempt) & ~newest
        axis.plot(*thin(steps[lost], values[lost]), color=palette.LOST, linewidth=1.0)
    order = np.argsort(steps[newest], kind="stable")
    x, y = steps[newest][order], values[newest][order]
    axis.plot(*thin(x, y), color=colour, linewidth=1.25, solid_joinstyle="round")
    if not np.isfinite(values).any():
        axis.set_yticks([])
        axis.text(0.5, 0.45, "no finite value", ha="center", transform=axis.transAxes)
    if bad is not None and bad.any():
        axis.plot(
            marks := thin_marks(steps[bad]),
            np.full(len(marks), 0.97),
            linestyle="none",
            marker="x",
            markersize=6,
            markeredgewidth=1.8,
            color=palette.RISK,
            transform=axis.get_xaxis_transform(),
            clip_on=False,
        )


def _choose_scale(axis: Any, values: Floats) -> None:
    known = values[np.isfinite(values)]
    if len(known) and known.min() > 0 and known.max() > 3 * known.min():
        axis.set_yscale("log")
        # Not as powers of ten: setting formulas takes a tenth of a second to import.
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter("")
        axis.tick_params(axis="y", which="minor", length=0)
        if known.max() < 30 * known.min():
            # Less than a decade and a half has a single labelled tick otherwise.
            from matplotlib.ticker import LogLocator

            axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))


def _legend(figure: Any, report: CrashReport, *, has_lost: bool, bad: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linestyle=(0, (4, 2)), linewidth=1.2, label=name)
        for name, (colour, _) in marks_of(report).items()
    ]
    if has_lost:
        handles.append(Line2D([], [], color=palette.LOST, label="work done again"))
    if bad:
        handles.append(
            Line2D(
                [],
                [],
                color=palette.RISK,
                marker="x",
                linestyle="none",
                markeredgewidth=1.8,
                label="NaN or infinite",
            )
        )
    if handles:
        figure.legend(handles=handles, loc="upper right", ncols=len(handles), borderaxespad=0.2)


_DRAWINGS: dict[str, Callable[[Any, RunData, CrashReport], bool]] = {
    "overview": draw_overview,
    "gradient_flow": lambda figure, run_data, report: draw_gradient_flow(figure, report),
    "observed": lambda figure, run_data, report: draw_courses(figure, run_data.courses),
}
EVERY = tuple(_DRAWINGS)
"""All that can be drawn, with ``--pictures``."""


MOST_NAMES = 60
"""More names than this cannot be read side by side."""
GRADIENT_LINES = (
    ("norm", palette.LOSS, "o"),
    ("max", palette.GRADIENT, "^"),
    ("mean", palette.RATE, "s"),
)


def draw_gradient_flow(figure: Any, report: CrashReport) -> bool:
    """Draws into `figure`; returns False when there is nothing to draw."""
    rows = report.gradient_flow
    if not rows:
        return False
    names = [str(row["name"]) for row in rows]
    with_names = len(names) <= MOST_NAMES
    figure.set_size_inches(9.6, 3.6 if with_names else 3.0)
    axis = figure.subplots()
    places = range(len(rows))
    for name, colour, marker in GRADIENT_LINES:
        values = [_drawable(number(row[name])) for row in rows]
        axis.plot(places, values, label=name, color=colour, marker=marker, markersize=4)
    for place, row in enumerate(rows):
        if number(row["nonfinite"]) > 0 or not math.isfinite(number(row["norm"])):
            axis.axvspan(place - 0.4, place + 0.4, color=palette.RISK, alpha=0.25, linewidth=0)
    axis.set_yscale("log")
    axis.set_xlim(-0.6, len(rows) - 0.4)
    if with_names:
        turned = 0 if len(names) <= 6 else 90 if len(names) > 20 else 35
        side = {} if turned in (0, 90) else {"ha": "right", "rotation_mode": "anchor"}
        axis.set_xticks(list(places), names, rotation=turned, **side)
    else:
        axis.set_xlabel("layer, from input to output")
    axis.set_title("Gradient of each layer, absolute (red: not finite)")
    axis.legend(loc="best")
    return True


def _drawable(value: float) -> float:
    """A logarithmic axis has no place for zero and infinity: a gap."""
    return value if math.isfinite(value) and value > 0 else math.nan
