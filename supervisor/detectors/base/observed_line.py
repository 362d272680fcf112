"""Lines on one observed value: fixed, beyond what is usual, or beyond what it used to be."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord

HOLD_STEPS = 10
"""Steps without the value after which its score is forgotten; Adam's update leads the loss by 1 to
8 steps (arXiv 2304.13013)."""

CALM = 0.8
"""Share of the line below which an excursion ends; a value may oscillate about the line."""


@dataclass(kw_only=True, eq=False, repr=False)
class ObservedLineDetector(Detector):
    """Alerts when an observed value is beyond a line for `patience` observations in a row.

    An excursion is reported once and ends at `CALM` of the line. A subclass names the value (`key`,
    in the alert's metadata as ``figure``); with `is_low_bad` lower values are beyond the line.
    """

    observed_only = True
    key: ClassVar[str]
    severity: ClassVar[Severity]
    category: ClassVar[str]
    kind: ClassVar[str]
    cause: ClassVar[Cause]
    advice: ClassVar[str] = ""
    is_low_bad: ClassVar[bool] = False
    _state: ClassVar[tuple[str, ...]] = ("_count", "_absent", "_told")

    line: float
    patience: int

    def _begin(self) -> None:
        self._count = 0
        self._absent = 0
        self._told = False

    def forget_levels(self) -> None:
        """Does nothing: the line is fixed, or depends on the weights."""

    def update(self, record: StepRecord) -> Alert | None:
        value = record.observed.get(self.key) if record.observed else None
        if value is None or not math.isfinite(value):
            if self.score:
                self._absent += 1
                if self._absent >= HOLD_STEPS:
                    self.score = 0.0
            return None
        self._absent = 0
        closeness = max(0.0, min(10.0, self.closeness(value)))
        self._count = self._count + 1 if closeness >= 1.0 else 0
        is_beyond = self._count >= self.patience
        self.score = closeness if is_beyond else min(closeness, 0.9)
        fresh = is_beyond and not self._told
        self._told = is_beyond or (self._told and closeness > CALM)
        if not fresh:
            return None
        return self.alert(
            record,
            severity=self.severity,
            category=self.category,
            kind=self.kind,
            cause=self.cause,
            message=self.message(value),
            value=value,
            threshold=self.line,
            metadata={"figure": self.key},
            advice=self.advice,
        )

    def closeness(self, value: float) -> float:
        """Returns 1.0 at the line, more beyond it."""
        if not self.is_low_bad:
            return value / self.line
        return self.line / value if value > 0.1 * self.line else 10.0

    @abstractmethod
    def message(self, value: float) -> str:
        """Says what is wrong with `value`, and what to do if there is no `advice`."""


MIN_LOOKS = 20
"""Looks after which it is known what is usual."""


@dataclass(kw_only=True, eq=False, repr=False)
class ObservedGrowthDetector(Detector):
    """Alerts when a positive value is `factor` times its median for `patience` observations.

    The median is taken over the last `window` observations that were below the line; after `window`
    observations beyond it the new level is adopted. A subclass names the value.
    """

    observed_only = True
    key: ClassVar[str]
    severity: ClassVar[Severity]
    category: ClassVar[str]
    kind: ClassVar[str]
    cause: ClassVar[Cause]
    _state = ("_usual", "_count", "_beyond")

    factor: float
    patience: int
    window: int

    def __post_init__(self) -> None:
        if self.factor <= 1.0:
            raise ValueError(f"factor: expected more than 1, got {self.factor}")
        super().__post_init__()

    def _begin(self) -> None:
        self._usual = RobustWindow(self.window)
        self._count = 0
        self._beyond: list[float] = []

    def update(self, record: StepRecord) -> Alert | None:
        value = record.observed.get(self.key) if record.observed else None
        if value is None or not 0.0 < value < math.inf:
            return None
        usual = self._usual
        if len(usual) < min(10, self.window):
            usual.add(value)
            return None
        grown = value / max(usual.median, 1e-300)
        self.score = min(10.0, math.log(grown) / math.log(self.factor)) if grown > 1.0 else 0.0
        if grown < self.factor:
            self._count, self._beyond = 0, []
            usual.add(value)
            return None
        self._count += 1
        self._beyond.append(value)
        median = usual.median
        if len(self._beyond) >= self.window:
            for late in self._beyond:
                usual.add(late)
            self._beyond = []
        if self._count < self.patience:
            self.score = min(self.score, 0.9)
        if self._count != self.patience:
            return None
        return self.alert(
            record,
            severity=self.severity,
            category=self.category,
            kind=self.kind,
            cause=self.cause,
            message=self.message(value, median),
            value=value,
            threshold=self.factor * median,
            metadata={"figure": self.key, "usual": median},
        )

    @abstractmethod
    def message(self, value: float, usual: float) -> str:
        """Says what is wrong with `value`, whose median was `usual`, and what to do."""
