"""Gradients and updates that are too large, too small or too uneven, by fixed lines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.detectors.base.observed_line import MIN_LOOKS, ObservedLineDetector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord

WORSE = 10.0
"""A finding is reported again only when it has grown by this factor."""


@dataclass(kw_only=True, eq=False, repr=False)
class GradientHealthDetector(Detector):
    """Absolute lines on the gradient norm; it only reports, for what is large depends on the model.

    A norm that crosses a line back and forth is reported once, again after `window` steps below it,
    and an explosion also when it has grown by `WORSE`.

    Args:
        explode_above: norm above which gradients explode; ten times the usual bound of clipping.
        vanish_below: norm below which they vanish: at a rate of 1e-2 no weight of 1 would move in
            single precision.
        variance_factor: the norm varies too much when its standard deviation exceeds its mean
            so many times; in a window of 100 single outliers of ten times the rest stay below 2.
        window: steps for the variance.
        patience: steps in a row that make vanishing or variance worth an alert.
    """

    name = "gradient_health"
    _state = ("_window", "_state_now", "_count", "_told", "_absent")

    explode_above: float = 10.0
    vanish_below: float = 1e-6
    variance_factor: float = 2.0
    window: int = 100
    patience: int = 5

    def __post_init__(self) -> None:
        # Ratio of highest to usual norm below which the gradient cannot vary too much: a deviation
        # of f x the mean needs a value of f^2 x the mean at least.
        self._least_factor = max(1.0, self.variance_factor) * self.variance_factor
        super().__post_init__()

    def _begin(self) -> None:
        self._window = RobustWindow(self.window)
        self._state_now = ""
        self._count = 0
        self._told: dict[str, float] = {}
        self._absent: dict[str, int] = {}

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
        if self._told:
            self._end_excursions(state)
        if state != self._state_now:
            self._state_now, self._count = state, 0
        self._count += 1
        wait = 1 if state == "grad_explosion" else self.patience
        if not state or self._count < wait or not self._is_news(state, norm):
            return None
        self._told[state], self._absent[state] = norm, 0
        return self._report(record, state, norm)

    def _is_news(self, state: str, norm: float) -> bool:
        told = self._told.get(state)
        return told is None or (state == "grad_explosion" and norm > WORSE * told)

    def _end_excursions(self, state: str) -> None:
        for name in list(self._told):
            self._absent[name] = 0 if name == state else self._absent[name] + 1
            if self._absent[name] >= self.window:
                del self._told[name], self._absent[name]

    def _classify(self, norm: float) -> str:
        if norm > self.explode_above:
            return "grad_explosion"
        if norm < self.vanish_below:
            return "grad_vanishing"
        window = self._window
        factor = self._least_factor  # cheap looks first
        if len(window.held) < self.window or window.ceiling < factor * window.floor:
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
            subject=Subject.GRADIENT,
            value=norm,
            threshold=threshold,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class LayerGradientDetector(ObservedLineDetector):
    """Largest gradient norm of one layer, before clipping, from the looks (``layer_gradient_max``).

    What is large depends on the loss, so the norm must also exceed what is usual in this run, once
    that is known.

    Args:
        line: norm above which a layer's gradient explodes; ten times the line of `gradient_health`,
            which is to report first.
        over_usual: multiple of the highest of the last `window` looks that were below the line.
        window: looks kept.
        patience: looks in a row; one bad batch is over at the next.
    """

    name = "layer_gradient"
    key = "layer_gradient_max"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "layer_gradient_explosion"
    cause = Cause.DIVERGENCE
    _state = (*ObservedLineDetector._state, "_usual")

    line: float = 100.0
    over_usual: float = 10.0
    window: int = 100
    patience: int = 2

    def _begin(self) -> None:
        super()._begin()
        self._usual = RobustWindow(self.window)

    def forget_levels(self) -> None:
        """Forgets what is usual: other data have other gradients."""
        self.reset()

    def closeness(self, value: float) -> float:
        usual = self._usual
        line = self.line
        if len(usual) >= MIN_LOOKS:
            line = max(line, self.over_usual * usual.highest)
        closeness = value / line
        if closeness < 1.0 or len(usual) < MIN_LOOKS:
            usual.add(value)
        return closeness

    def message(self, value: float) -> str:
        return (
            f"the gradient norm of one layer is {value:.4g} (line {self.line:g}); look at what "
            "feeds it, clip, or lower the learning rate"
        )


SMALL = 0.02
"""Smaller updates are never a leap: fine-tuning begins with hardly any."""


@dataclass(kw_only=True, eq=False, repr=False)
class UpdateRatioDetector(ObservedLineDetector):
    """Largest ||change|| / ||weight|| of a layer, from the looks (``update_ratio``).

    Healthy updates are around 0.01 in small models and 0.001 in large ones. Trouble is an update
    that leaps beyond all earlier ones of the run, or that is half of the weight.

    Args:
        line: ratio; the highest in a healthy run of benchmarks/corpus is 0.38.
        leap: multiple of the highest earlier ratio, from the 20th look on.
        patience: looks in a row; single large updates occur when a layer begins to learn.
    """

    name = "update_ratio"
    key = "update_ratio"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "update_too_large"
    cause = Cause.LEARNING_RATE
    _state = (*ObservedLineDetector._state, "_highest", "_looks")

    line: float = 0.5
    leap: float = 3.0
    patience: int = 2

    def _begin(self) -> None:
        super()._begin()
        self._highest = 0.0
        self._looks = 0

    def closeness(self, value: float) -> float:
        self._looks += 1
        line = self.line
        if self._looks > MIN_LOOKS:
            line = min(line, max(self.leap * self._highest, SMALL))
        if value < line:
            self._highest = max(self._highest, value)
        return value / line

    def message(self, value: float) -> str:
        return (
            f"one update changes a layer by {value:.0%} of its weight; the learning rate "
            "is too high for it, or its gradient has no bound"
        )
