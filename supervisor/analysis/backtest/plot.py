"""Draws a backtest: the signals above, the risk below, alarms and decisions as lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from supervisor.analysis.backtest.backtest import BacktestResult, Signal, summary

ALARM, DECISION = "tab:red", "tab:blue"


def plot_backtest(
    result: BacktestResult, path: Path, *, alarm_threshold: float = 0.5, title: str = ""
) -> None:
    """Writes a PNG to `path`.

    Raises:
        OSError: `path` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    signals = result.shown or [result.loss]
    heights = [2.0] * len(signals) + [1.2]
    *above, below = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axis, signal in zip(above, signals, strict=True):
        _draw_signal(axis, signal)
        for alarm in result.alarms:
            axis.axvline(alarm.step, color=ALARM, linewidth=0.8, alpha=0.6)
    below.plot(result.at, result.risk, linewidth=0.8, color=ALARM)
    below.axhline(alarm_threshold, color="gray", linewidth=0.8, linestyle="--")
    below.set_ylim(0, 1)
    below.set_ylabel("risk")
    below.set_xlabel("step")
    for decision in result.decisions:
        below.axvline(decision.step, color=DECISION, linewidth=0.5, alpha=0.3)
    figure.suptitle(f"{title}: {summary(result)}" if title else summary(result))
    _explain(figure)
    figure.savefig(path, dpi=120)


def _draw_signal(axis: Any, signal: Signal) -> None:
    finite = [value for value in signal.values if math.isfinite(value)]
    shown = [value if math.isfinite(value) else math.nan for value in signal.values]
    axis.plot(signal.steps, shown, linewidth=0.8, color="black")
    if finite and min(finite) > 0:
        axis.set_yscale("log")
    axis.set_ylabel(signal.name)
    above = axis.get_xaxis_transform()
    places = [0.95] * len(signal.bad)
    axis.plot(signal.bad, places, "x", color=ALARM, markersize=5, transform=above)


def _explain(figure: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=ALARM, label="alarm"),
        Line2D([], [], color=ALARM, marker="x", linestyle="none", label="NaN or infinite"),
        Line2D([], [], color=DECISION, alpha=0.5, label="something would be done"),
        Line2D([], [], color="gray", linestyle="--", label="alarm line"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
