"""What was usual before an anomalous step, a line's ``threshold_info``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from supervisor.detectors.base import Detector
from supervisor.detectors.base.signal_anomaly import SignalAnomalyDetector
from supervisor.detectors.gradients.gradient_anomaly import GradientAnomalyDetector
from supervisor.detectors.loss.loss_anomaly import LossAnomalyDetector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader
from supervisor.worker.ground.deferral import MAX_WAITING

WINDOW = 50
"""Steps that figures are of where no detector judges the signal: the detectors' own default."""


def threshold_info(
    rundir: RunDirectory,
    rank: int,
    record: StepRecord,
    alerts: Iterable[Alert],
    detectors: Sequence[Detector],
) -> dict[str, Any]:
    """Returns ``loss`` and ``grad_norm`` → their figures, and alert's kind → its own figures.

    Figures are of the steps before this one that the signal's detector looks at, as the flight
    recorder has them; the threshold is drawn with that detector's settings.

    Raises:
        OSError, RunDirectoryError: the flight recorder cannot be read.
    """
    with FlightReader(rundir.steps(rank)) as reader:
        judges = {
            "loss": next((d for d in detectors if isinstance(d, LossAnomalyDetector)), None),
            "grad_norm": next(
                (d for d in detectors if isinstance(d, GradientAnomalyDetector)), None
            ),
        }
        longest = max(WINDOW, *(judge.window for judge in judges.values() if judge), 0)
        rows = reader.read(reader.rows() - longest - 2 * MAX_WAITING - 1)
    rows = rows[rows["step"] < record.step]
    info: dict[str, Any] = {
        name: signal_figures(rows[name], getattr(record, name), judge)
        for name, judge in judges.items()
    }
    for alert in alerts:
        info[alert.kind] = {"threshold": alert.threshold, **dict(alert.metadata)}
    return info


def signal_figures(
    before: np.ndarray, value: float, judge: SignalAnomalyDetector | None
) -> Mapping[str, float]:
    """Returns median, mad, mean, std and threshold of the steps before, and the relative change.

    Args:
        before: oldest first; what is not finite is left out.
        value: of the anomalous step.
        judge: the detector that watches this signal; None if there is none, then no line is drawn.
    """
    size = WINDOW if judge is None else judge.window
    known = [float(v) for v in before if math.isfinite(v)][-size:]
    window, logs = RobustWindow(size), RobustWindow(size)
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
        "threshold": _line(judge, window, logs) if judge and known else math.nan,
        "relative_change": change,
    }


def _line(judge: SignalAnomalyDetector, window: RobustWindow, logs: RobustWindow) -> float:
    """The rule of `SignalAnomalyDetector`: in the log domain while all is positive."""
    if judge.fixed is not None:
        return judge.fixed
    if window.lowest >= 0:
        rise = max(judge.k * logs.sigma, math.log1p(judge.min_rise))
        return math.exp(min(logs.median + rise, 700.0))
    rise = max(judge.k * window.sigma, judge.min_rise * max(abs(window.median), window.sigma))
    return window.median + rise
