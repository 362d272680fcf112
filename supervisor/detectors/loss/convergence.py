"""Plateau and divergence over a window, as a slope."""

from __future__ import annotations

import math
from collections import deque

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord


class ConvergenceDetector(Detector):
    """Reports a loss that has stopped to fall, or that rises at a rate. It never treats.

    Looks every `window` steps at the means of the window's two halves.

    Args:
        window: steps.
        plateau_below: relative improvement below which the run stands still.
        diverge_above: relative rise that is a divergence, if it is beyond the noise, too.
        errors: standard errors of the halves' difference that a rise must exceed. Without it 12
            alerts in 10,000 healthy steps, with it 0.7.
        patience: plateaus in a row that make one alert: 500 steps; noise hides progress for one.
    """

    name = "convergence"
    _state = ("_losses", "_since", "_flat")

    def __init__(
        self,
        *,
        window: int = 50,
        plateau_below: float = 0.001,
        diverge_above: float = 0.1,
        errors: float = 3.0,
        patience: int = 10,
    ) -> None:
        self.window = window
        self.plateau_below = plateau_below
        self.diverge_above = diverge_above
        self.errors = errors
        self.patience = patience
        self._begin()

    def _begin(self) -> None:
        self._losses: deque[float] = deque(maxlen=self.window)
        self._since = 0
        self._flat = 0

    def update(self, record: StepRecord) -> Alert | None:
        if not record.loss_seen or not abs(record.loss) < 1e150:
            return None
        self._losses.append(record.loss)
        self._since += 1
        if self._since < self.window or len(self._losses) < self.window:
            return None
        self._since = 0
        return self._look(record)

    def _look(self, record: StepRecord) -> Alert | None:
        losses = list(self._losses)
        half = len(losses) // 2
        early, early_error = _mean(losses[:half])
        late, late_error = _mean(losses[half:])
        rise = max(-1e6, min(1e6, (late - early) / abs(early))) if early else 0.0
        noise = self.errors * math.hypot(early_error, late_error)
        self.score = max(0.0, rise / self.diverge_above)
        if self.score > 1.0 and late - early > noise:
            self._flat = 0
            return self._report(record, "loss_rising", rise, Severity.MEDIUM, self.diverge_above)
        self.score = min(self.score, 0.9)
        self._flat = self._flat + 1 if rise > -self.plateau_below else 0
        if self._flat != self.patience:
            return None
        return self._report(record, "plateau", rise, Severity.LOW, self.plateau_below)

    def _report(
        self, record: StepRecord, kind: str, rise: float, severity: Severity, line: float
    ) -> Alert:
        if kind == "plateau":
            cause = Cause.PLATEAU
            message = (
                f"the loss has not improved by {line:.1%} in {self.patience} windows of "
                f"{self.window} steps"
            )
        else:
            cause = Cause.DIVERGENCE
            message = f"the loss rose by {rise:.1%} within {self.window} steps"
        return self.alert(
            record,
            severity=severity,
            category="convergence",
            kind=kind,
            cause=cause,
            message=message,
            subject=Subject.LOSS,
            value=rise,
            threshold=line,
        )


def _mean(values: list[float]) -> tuple[float, float]:
    """Mean of values, and its standard error."""
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.fsum((value - mean) ** 2 for value in values) / max(1, count - 1)
    return mean, math.sqrt(spread / count)
