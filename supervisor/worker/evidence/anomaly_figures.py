"""What was usual before an anomalous step (REQUIREMENTS A4, ``threshold_info``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader
from supervisor.worker.ground.calm_line import MAX_WAITING

WINDOW = 50
"""As the detectors of loss and gradient norm by default."""
WIDTH = 8.0
"""Their default `k`: the line is drawn where they would draw it."""
MIN_RISE = 0.1


def threshold_info(
    rundir: RunDirectory, rank: int, record: StepRecord, alerts: Iterable[Alert]
) -> dict[str, Any]:
    """Returns ``loss`` and ``grad_norm`` → their figures, and alert's kind → its own figures.

    Figures are of the last `WINDOW` steps before this one, as the flight recorder has them.

    Raises:
        OSError, RunDirectoryError: the flight recorder cannot be read.
    """
    with FlightReader(rundir.steps(rank)) as reader:
        rows = reader.read(reader.rows() - WINDOW - 2 * MAX_WAITING - 1)
    rows = rows[rows["step"] < record.step]
    info: dict[str, Any] = {
        "loss": signal_figures(rows["loss"], record.loss),
        "grad_norm": signal_figures(rows["grad_norm"], record.grad_norm),
    }
    for alert in alerts:
        info[alert.kind] = {"threshold": alert.threshold, **dict(alert.metadata)}
    return info


def signal_figures(before: np.ndarray, value: float) -> Mapping[str, float]:
    """Returns median, mad, mean, std and threshold of the steps before, and the relative change.

    Args:
        before: oldest first; what is not finite is left out.
        value: of the anomalous step.
    """
    known = [float(v) for v in before if math.isfinite(v)][-WINDOW:]
    window, logs = RobustWindow(WINDOW), RobustWindow(WINDOW)
    for old in known:
        window.add(old)
        logs.add(math.log(max(old, 1e-30)))
    change = math.nan
    if known and known[-1] != 0 and math.isfinite(value):
        change = (value - known[-1]) / abs(known[-1])
    return {
        "median": window.median,
        "mad": window.mad,
        "mean": window.mean,
        "std": window.std,
        "threshold": _line(window, logs) if known else math.nan,
        "relative_change": change,
    }


def _line(window: RobustWindow, logs: RobustWindow) -> float:
    """The dynamic rule of `SignalAnomalyDetector`: in the log domain while all is positive."""
    if window.lowest >= 0:
        rise = max(WIDTH * logs.sigma, math.log1p(MIN_RISE))
        return math.exp(min(logs.median + rise, 700.0))
    rise = max(WIDTH * window.sigma, MIN_RISE * max(abs(window.median), window.sigma))
    return window.median + rise
