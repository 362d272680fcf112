"""The gradients of all layers as one picture, from the input to the output."""

from __future__ import annotations

import math
from typing import Any

from supervisor.report.facts import palette
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.figures import number

MOST_NAMES = 60
"""More names than this cannot be read side by side."""
LINES = (
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
    for name, colour, marker in LINES:
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
