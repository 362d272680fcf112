"""Draws a backtest: the signals above, the risk below, alarms and decisions as lines."""

from __future__ import annotations

import math
from pathlib import Path

from supervisor.analysis.backtest import BacktestResult


def plot_backtest(result: BacktestResult, path: Path, *, alarm_threshold: float = 0.5) -> None:
    """Writes a PNG to `path`.

    Raises:
        OSError: `path` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    steps = [record.step for record in result.records]
    losses = [r.loss if r.loss_seen and math.isfinite(r.loss) else math.nan for r in result.records]
    above.plot(steps, losses, linewidth=0.8, label="loss")
    finite = [value for value in losses if math.isfinite(value)]
    if finite and min(finite) > 0:
        above.set_yscale("log")
    above.set_ylabel("loss")
    below.plot(steps, result.risk, linewidth=0.8, color="tab:red", label="risk")
    below.axhline(alarm_threshold, color="gray", linewidth=0.8, linestyle="--")
    below.set_ylim(0, 1)
    below.set_ylabel("risk")
    below.set_xlabel("step")
    for alarm in result.alarms:
        above.axvline(alarm.step, color="tab:red", linewidth=0.8, alpha=0.6)
    for decision in result.decisions:
        below.axvline(decision.step, color="tab:blue", linewidth=0.5, alpha=0.3)
    above.set_title(f"{result.steps} steps, {len(result.alarms)} alarms")
    figure.savefig(path, dpi=120)
