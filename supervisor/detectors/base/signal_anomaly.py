"""Three thresholds on one signal: fixed, median + k x MAD, and relative change."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import LEAP, RobustWindow, is_leap
from supervisor.detectors.statistics.run_scale import RunScale
from supervisor.records import Alert, Cause, Severity, StepRecord

MAX_SCORE = 1e6
FEWEST_VALUES = 5
"""Values needed before a jump can be judged; against one or two, half of all second steps jump."""


@dataclass(kw_only=True, eq=False, repr=False)
class SignalAnomalyDetector(Detector):
    """Judges a signal by three rules; the first that holds makes the alert.

    1. `fixed`: above a line that the user drew; the dynamic rule is off then.
    2. dynamic: above median + `k` x 1.4826 x MAD of the last `window` steps, in the log domain
       while the signal is positive; a MAD of zero is replaced by `min_rise`.
    3. relative: more than `jump` above the previous step, above all of the window, and either half
       way to the dynamic line or by `jump` above the window. Low severity; medium if it lasts for
       `jump_steps` steps.

    Args:
        fixed: line above which any value is an anomaly; None for none.
        k: width of the dynamic band; 8 gives about one alarm in 2,000 healthy steps of public logs.
        window: steps from which the band is computed.
        min_window: steps that must have been seen before the band counts.
        min_rise: smallest relative excess over the median that can be an anomaly.
        jump: relative change from the previous step; a leap (`statistics.leap`) by default.
        jump_steps: steps in a row above the level before the jump after which it counts as lasting.
    """

    noun: ClassVar[str]
    category: ClassVar[str]
    _state = ("_band", "_previous", "_negative", "_before_jump", "_above", "_scale")

    fixed: float | None = None
    k: float = 8.0
    window: int = 50
    min_window: int = 10
    min_rise: float = 0.1
    jump: float = LEAP
    jump_steps: int = 3

    def __post_init__(self) -> None:
        self._floor = math.log1p(self.min_rise)
        super().__post_init__()

    def _begin(self) -> None:
        self._band = RobustWindow(self.window)
        self._scale = RunScale()
        self._previous = math.nan
        self._negative = False
        self._before_jump = math.nan
        self._above = 0

    @abstractmethod
    def signal(self, record: StepRecord) -> tuple[float, bool]:
        """Returns the value to judge, and whether it was seen."""

    def update(self, record: StepRecord) -> Alert | None:
        value, seen = self.signal(record)
        self.score = 0.0
        if not seen or not math.isfinite(value):
            return None
        scale, before = self._scale, self._previous
        scale.update(value)
        inner = value
        if not self._negative and value >= 0:
            inner = math.log(max(value, scale.floor, 1e-30))
        alert = self._judge_fixed(record, value) if self.fixed is not None else None
        if self.fixed is None and scale.level > 0.0:
            alert = self._judge_band(record, value, inner)
        jump = None
        if self._above or value - before > self.jump * abs(before):
            jump = self._judge_jump(record, value, inner)
        self._previous = value
        if value < 0 and not self._negative:
            raw = [math.exp(v) for v in self._band.held]
            self._negative = True
            self._band.clear()
            for old in raw:
                self._band.add(old)
        self._band.add(inner)
        return alert or jump

    def _judge_fixed(self, record: StepRecord, value: float) -> Alert | None:
        assert self.fixed is not None
        self.score = 2.0 * float(value > self.fixed)
        if self.fixed > 0:
            self.score = min(MAX_SCORE, max(0.0, value / self.fixed))
        if value <= self.fixed:
            return None
        return self._spike(record, value, self.fixed, Severity.HIGH, "above what is allowed")

    def _judge_band(self, record: StepRecord, value: float, inner: float) -> Alert | None:
        if len(self._band.held) < self.min_window or value < 0 <= self._band.lowest:
            return None
        floor = self._floor
        if not self._negative and self._band.is_surely_near(inner, floor):
            return None
        median = self._band.median
        if not self._negative and self._is_as_good_as_zero(median):
            return None  # nor is a ratio to zero
        if inner - median <= floor and not self._negative:
            return None  # no anomaly whatever the spread is
        sigma = self._band.sigma
        if self._negative:
            floor = self.min_rise * max(abs(median), sigma)
        width = max(self.k * sigma, floor)
        self.score = min(MAX_SCORE, max(0.0, (inner - median) / width)) if width > 0 else 0.0
        if self.score <= 1.0:
            return None
        threshold = median + width
        if not self._negative:
            threshold = math.exp(min(threshold, 700.0))
        severity = Severity.HIGH if self.score > 2.0 else Severity.MEDIUM
        return self._spike(record, value, threshold, severity, "far above its usual")

    def _is_as_good_as_zero(self, median: float) -> bool:
        return median <= math.log(self._scale.floor) + self._floor

    def _spike(
        self, record: StepRecord, value: float, threshold: float, severity: Severity, why: str
    ) -> Alert:
        return self.alert(
            record,
            severity=severity,
            category=self.category,
            kind=f"{'loss' if self.category == 'loss' else 'grad'}_spike",
            cause=Cause.SPIKE,
            message=f"the {self.noun} {value:.6g} is {why} (line {threshold:.6g})",
            advice="look at this step's batch",
            subject=self._subject,
            value=value,
            threshold=threshold,
            metadata=self._figures(value),
        )

    @property
    def _subject(self) -> Subject:
        return Subject.LOSS if self.category == "loss" else Subject.GRADIENT

    def _figures(self, value: float) -> dict[str, float]:
        median = self._band.median
        change = math.nan
        if math.isfinite(self._previous) and self._previous != 0:
            change = (value - self._previous) / abs(self._previous)
        if not self._negative and math.isfinite(median):
            median = math.exp(median)
        return {"median": median, "relative_change": change, "score": self.score}

    def _is_high(self, inner: float) -> bool:
        """Whether the value is above the usual; a jump back to it is not one."""
        band = self._band
        half_way = band.median + max(2.0, 0.5 * self.k) * band.sigma
        if inner > max(band.highest, half_way):
            return True
        return not self._negative and inner > band.highest + math.log1p(self.jump)

    def _judge_jump(self, record: StepRecord, value: float, inner: float) -> Alert | None:
        before = self._previous
        least = self._scale.floor  # what rises by less has lost nothing
        rose = is_leap(value, before, self.jump) and value - before > least and (before or least)
        rose = rose and len(self._band.held) >= FEWEST_VALUES and self._is_high(inner)
        if rose and self._above == 0:
            self._before_jump, self._above = before, 1
            severity, kind = Severity.LOW, "jump"
        elif self._above and is_leap(value, self._before_jump, self.jump):
            self._above += 1
            if self._above != self.jump_steps:
                return None
            severity, kind = Severity.MEDIUM, "persistent_jump"
        else:
            self._above = 0
            return None
        threshold = self._before_jump + self.jump * abs(self._before_jump)
        return self.alert(
            record,
            severity=severity,
            category=self.category,
            kind=f"{'loss' if self.category == 'loss' else 'grad'}_{kind}",
            cause=Cause.SPIKE,
            message=f"the {self.noun} rose from {self._before_jump:.6g} to {value:.6g}",
            subject=self._subject,
            value=value,
            threshold=threshold,
            metadata=self._figures(value),
        )


class LossAnomalyDetector(SignalAnomalyDetector):
    """Fixed, dynamic and relative thresholds on the loss (settings: `SignalAnomalyDetector`)."""

    name = "loss_anomaly"
    noun = "loss"
    category = "loss"

    def signal(self, record: StepRecord) -> tuple[float, bool]:
        return record.loss, record.loss_seen


class GradientAnomalyDetector(SignalAnomalyDetector):
    """Fixed, dynamic and relative thresholds on the norm (settings: `SignalAnomalyDetector`)."""

    name = "gradient_anomaly"
    noun = "gradient norm"
    category = "gradient"

    def signal(self, record: StepRecord) -> tuple[float, bool]:
        return record.grad_norm, record.grad_norm_seen
