"""Draws a backtest: the signals above, the risk below, alarms and decisions as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.analysis.backtest.backtest import BacktestResult, summary

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
    records = result.records
    steps = [record.step for record in records]
    signals = [("loss", [r.loss for r in records], [r.has_nonfinite_loss for r in records])]
    if any(record.grad_norm_seen for record in records):
        bad = [r.has_nonfinite_grad for r in records]
        signals.append(("gradient norm", [r.grad_norm for r in records], bad))
    heights = [2.0] * len(signals) + [1.2]
    *above, below = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axis, (name, values, bad) in zip(above, signals, strict=True):
        _draw_signal(axis, name, steps, values, bad)
        for alarm in result.alarms:
            axis.axvline(alarm.step, color=ALARM, linewidth=0.8, alpha=0.6)
    below.plot(steps, result.risk, linewidth=0.8, color=ALARM)
    below.axhline(alarm_threshold, color="gray", linewidth=0.8, linestyle="--")
    below.set_ylim(0, 1)
    below.set_ylabel("risk")
    below.set_xlabel("step")
    for decision in result.decisions:
        below.axvline(decision.step, color=DECISION, linewidth=0.5, alpha=0.3)
    figure.suptitle(f"{title}: {summary(result)}" if title else summary(result))
    _explain(figure)
    figure.savefig(path, dpi=120)


def _draw_signal(
    axis: Any, name: str, steps: Sequence[int], values: Sequence[float], bad: Sequence[bool]
) -> None:
    finite = [value for value in values if math.isfinite(value)]
    shown = [value if math.isfinite(value) else math.nan for value in values]
    axis.plot(steps, shown, linewidth=0.8, color="black")
    if finite and min(finite) > 0:
        axis.set_yscale("log")
    axis.set_ylabel(name)
    crossed = [step for step, is_bad in zip(steps, bad, strict=True) if is_bad]
    above = axis.get_xaxis_transform()
    axis.plot(crossed, [0.95] * len(crossed), "x", color=ALARM, markersize=5, transform=above)


def _explain(figure: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=ALARM, label="alarm"),
        Line2D([], [], color=ALARM, marker="x", linestyle="none", label="NaN or infinite"),
        Line2D([], [], color=DECISION, alpha=0.5, label="something would be done"),
        Line2D([], [], color="gray", linestyle="--", label="alarm line"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
