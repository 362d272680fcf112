"""Gradients that explode, vanish, or vary too much, by fixed lines."""

from __future__ import annotations

import math

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord


class GradientHealthDetector(Detector):
    """Absolute lines on the gradient norm. It only reports: what is large depends on the model.

    Args:
        explode_above: norm above which gradients explode.
        vanish_below: norm below which they vanish.
        variance_factor: the norm varies too much when its standard deviation exceeds its mean
            this many times.
        window: steps for the variance.
        patience: steps in a row that make vanishing or variance worth an alert; the same state
            is reported once until it ends.
    """

    name = "gradient_health"
    _state = ("_window", "_state_now", "_count", "_reported")

    def __init__(
        self,
        *,
        explode_above: float = 10.0,
        vanish_below: float = 1e-6,
        variance_factor: float = 2.0,
        window: int = 100,
        patience: int = 5,
    ) -> None:
        self.explode_above = explode_above
        self.vanish_below = vanish_below
        self.variance_factor = variance_factor
        self.window = window
        self.patience = patience
        self._begin()

    def _begin(self) -> None:
        self._window = RobustWindow(self.window)
        self._state_now = ""
        self._count = 0
        self._reported = False

    def update(self, record: StepRecord) -> Alert | None:
        norm = record.grad_norm
        if not record.grad_norm_seen or not math.isfinite(norm):
            return None
        norm = min(abs(norm), 1e150)
        self._window.add(norm)
        state = self._classify(norm)
        self.score = min(10.0, norm / self.explode_above)
        if state and state != "grad_explosion":
            self.score = 1.0
        if state != self._state_now:
            self._state_now, self._count, self._reported = state, 0, False
        self._count += 1
        wait = 1 if state == "grad_explosion" else self.patience
        if not state or self._reported or self._count < wait:
            return None
        self._reported = True
        return self._report(record, state, norm)

    def _classify(self, norm: float) -> str:
        if norm > self.explode_above:
            return "grad_explosion"
        if norm < self.vanish_below:
            return "grad_vanishing"
        window = self._window
        # A deviation of f x the mean needs a value of f^2 x the mean at least: cheap looks first.
        factor = max(1.0, self.variance_factor) * self.variance_factor
        if len(window) < self.window or window.ceiling < factor * window.floor:
            return ""
        if window.highest < factor * window.median:
            return ""
        return "grad_variance" if window.std > self.variance_factor * window.mean else ""

    def _report(self, record: StepRecord, state: str, norm: float) -> Alert:
        said = {
            "grad_explosion": (
                Cause.DIVERGENCE,
                self.explode_above,
                f"the gradient norm {norm:.6g} exceeds {self.explode_above:g}; clip, or lower the "
                "learning rate",
            ),
            "grad_vanishing": (
                Cause.DEAD_UNITS,
                self.vanish_below,
                f"the gradient norm {norm:.3g} is below {self.vanish_below:g}; look for dead "
                "units, a detached loss, or underflow",
            ),
            "grad_variance": (
                Cause.OTHER,
                self.variance_factor,
                f"the gradient norm varies by more than {self.variance_factor:g} x its mean; a "
                "larger batch or clipping steadies it",
            ),
        }
        cause, threshold, message = said[state]
        return self.alert(
            record,
            severity=Severity.MEDIUM,
            category="gradient",
            kind=state,
            cause=cause,
            message=message,
            value=norm,
            threshold=threshold,
        )
