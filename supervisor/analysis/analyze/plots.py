"""Pictures of anomalies: where they are in the run, and their largest gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supervisor.analysis.analyze.statistics import Anomaly

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_overview(rows: np.ndarray, anomalies: Sequence[Anomaly], path: Path) -> None:
    """Draws loss and gradient norm of the run with the anomalous steps marked.

    Raises:
        OSError: `path` cannot be written.
    """
    figure = _figure(9.0, 5.0)
    for place, (name, title) in enumerate((("loss", "loss"), ("grad_norm", "gradient norm"))):
        axes = figure.add_subplot(2, 1, place + 1)
        values = np.where(np.isfinite(rows[name]), rows[name], np.nan)
        axes.plot(rows["step"], values, linewidth=0.8, color="#444444")
        for anomaly in anomalies:
            axes.axvline(anomaly.step, color="#c0392b", linewidth=0.8, linestyle="--")
        if np.any(values > 0) and not np.any(values <= 0):
            axes.set_yscale("log")
        axes.set_ylabel(title)
    axes.set_xlabel("step")
    figure.suptitle(f"{len(anomalies)} anomalous steps")
    _save(figure, path)


def plot_gradients(anomaly: Anomaly, path: Path) -> None:
    """Draws the ten largest gradient norms of one step; those that are not finite as full bars.

    Raises:
        OSError: `path` cannot be written.
    """
    top = anomaly.top_gradients[::-1]
    finite = [gradient["norm"] for gradient in top if math.isfinite(gradient["norm"])]
    full = max(finite, default=1.0) or 1.0
    figure = _figure(8.0, 0.35 * len(top) + 1.4)
    axes = figure.add_subplot(1, 1, 1)
    for place, gradient in enumerate(top):
        norm = gradient["norm"]
        is_finite = math.isfinite(norm)
        color = "#2c6fbb" if is_finite else "#c0392b"
        axes.barh(place, norm if is_finite else full, color=color)
        axes.text(0, place, f" {norm:.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(top)), [gradient["name"] for gradient in top], fontsize=8)
    axes.set_xlabel("L2 norm of the gradient, before clipping")
    axes.set_title(f"step {anomaly.step}: loss {anomaly.recomputed_loss:.4g}")
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    path.chmod(0o600)
