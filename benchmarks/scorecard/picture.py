"""The scorecard of one split as a picture: recall at equal false alarms, and reliability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.scorecard.calibration import SMALLEST_BIN
from benchmarks.scorecard.measurement import ACTS, OURS, Measurement
from benchmarks.scorecard.roc import MOST_FALSE, curve, sweep
from supervisor.report.facts.figures import GRID, INK, LOST, MUTED, RISK

NAMED = 5
"""So many rules of others, those with the largest partial area, are named; the rest is grey."""

COLOURS = ("#2f6fdb", "#b7791f", "#2c8a5b", "#7a4fd0", "#9a3fb5")


def draw(split: str, measured: Sequence[Measurement], figures: dict[str, Any], path: Path) -> None:
    """Writes a PNG; `figures` is what `score` returned for the same runs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_curves(left, measured, figures["judges"])
    _draw_reliability(right, figures["calibrated"])
    left.set_title(f"{split} split: crashes found before their peak", color=INK)
    for axes in (left, right):
        axes.grid(color=GRID, linewidth=0.6)
        axes.tick_params(colors=MUTED)
    figure.savefig(path, dpi=120)


def _draw_curves(axes: Any, measured: Sequence[Measurement], judges: dict[str, Any]) -> None:
    others = sorted(
        (name for name in judges if name not in (OURS, ACTS)),
        key=lambda name: -judges[name]["partial_area"],
    )
    for rank, name in reversed(list(enumerate(others))):
        grid, recall = curve(measured, sweep(measured, name))
        colour = COLOURS[rank] if rank < NAMED else LOST
        label = f"{name}, {judges[name]['partial_area']:.2f}" if rank < NAMED else None
        axes.step(grid, recall, where="post", color=colour, linewidth=1.2, label=label)
    grid, recall = curve(measured, sweep(measured, OURS))
    label = f"{OURS}, {judges[OURS]['partial_area']:.2f}"
    axes.step(grid, recall, where="post", color=RISK, linewidth=2.4, label=label)
    mine = judges[OURS]
    if mine["false_per_10k"] <= MOST_FALSE:
        found = mine["found_before_peak"] / max(1, mine["crashes"])
        axes.plot(mine["false_per_10k"], found, "o", color=RISK, label="its alarm line")
    axes.set_xlim(0, MOST_FALSE)
    axes.set_ylim(0, 1)
    axes.set_xlabel("false alarms in 10,000 healthy steps")
    axes.set_ylabel("share of crashes")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], title="and its partial area", loc="lower right")


def _draw_reliability(axes: Any, calibrated: dict[str, Any]) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle="--")
    for count, said, true in calibrated["bins"]:
        full = count >= SMALLEST_BIN
        axes.plot(said, true, "o", color=RISK if full else LOST, markersize=8 if full else 5)
        axes.annotate(f"{count}", (said, true), xytext=(7, -3), textcoords="offset points")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("calibrated probability")
    axes.set_ylabel("share of steps with a crash within 20 steps")
    axes.set_title(f"reliability (steps; grey: below {SMALLEST_BIN})", color=INK)
