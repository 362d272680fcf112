"""A learning rate out of range, or one that leaps where no schedule has leapt."""

from __future__ import annotations

import math
from collections import deque

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord

FEWEST_STEPS = 10
"""Steps before a change can be sudden; a warm-up doubles the rate at its first step and grows by
less than `change` from the fifth on."""
LOW_STEPS = 100
"""Steps at a low rate before it is reported; a warm-up by epochs keeps its first rate for some
ten."""


class LearningRateDetector(Detector):
    """Reports a rate out of [`low`, `high`] once, and sudden changes above `change`.

    Below `low` a rate is reported only where the training began so and stays at it for
    `LOW_STEPS` steps: schedules end near 0, and warm-ups begin there.

    A change is sudden only after steady rates (each within `steady` of its neighbour), and not if a
    schedule explains it: a rate seen in the last `memory` changes (a cycle), a cut to a round share
    (0.1, 0.5, 0.95; a third, a hundredth), or the same difference as before (a line).

    Args:
        low, high: usual range; below it weights around 1 do not move in single precision, above it
            an update is larger than its gradient.
        change: relative change from one step to the next.
        steady: relative change per step up to which a schedule counts as smooth.
        memory: rates remembered.
    """

    name = "learning_rate"
    _state = (
        *("_previous", "_levels", "_out", "_seen", "_moving", "_difference"),
        *("_was_usual", "_low_steps"),
    )

    def __init__(
        self,
        *,
        low: float = 1e-8,
        high: float = 1.0,
        change: float = 0.3,
        steady: float = 0.02,
        memory: int = 16,
    ) -> None:
        self.low = low
        self.high = high
        self.change = change
        self.steady = steady
        self.memory = memory
        self._begin()

    def _begin(self) -> None:
        self._previous = math.nan
        self._levels: deque[float] = deque(maxlen=self.memory)
        self._out = False
        self._seen = 0
        self._moving = 0
        self._difference = math.nan
        self._was_usual = False
        self._low_steps = 0

    def update(self, record: StepRecord) -> Alert | None:
        rate = record.lr
        self.score = 0.0
        if not math.isfinite(rate) or rate < 0:
            return None
        self._seen += 1
        before, self._previous = self._previous, rate
        out = rate > self.high or self._stays_low(before, rate)
        fresh, self._out = out and not self._out, out
        if out:
            self.score = 1.0
        leap = self._judge_change(record, before, rate)
        return self._out_of_range(record, rate) if fresh else leap

    def _stays_low(self, before: float, rate: float) -> bool:
        self._was_usual = self._was_usual or rate >= self.low
        if self._was_usual or rate == 0:
            self._low_steps = 0
        else:
            self._low_steps = self._low_steps + 1 if rate == before else 1
        return self._low_steps >= LOW_STEPS

    def _judge_change(self, record: StepRecord, before: float, rate: float) -> Alert | None:
        if not before > 0 or rate == before:
            self._moving = max(0, self._moving - 1)
            return None
        is_line = abs(rate - before - self._difference) <= 0.02 * abs(rate - before)
        self._difference = rate - before
        relative = abs(rate - before) / before
        was_moving = self._moving > 0
        self._moving = 3 if relative > self.steady else max(0, self._moving - 1)
        if relative <= self.change:
            return None
        known = any(abs(level - rate) <= 0.05 * rate for level in self._levels)
        self._levels.append(before)
        explained = was_moving or known or is_line or self._is_scheduled_cut(rate / before)
        if explained or self._seen < FEWEST_STEPS:
            return None
        self.score = 1.0
        return self.alert(
            record,
            severity=Severity.MEDIUM,
            category="learning_rate",
            kind="lr_sudden_change",
            cause=Cause.LEARNING_RATE,
            message=f"the learning rate went from {before:.4g} to {rate:.4g} in one step, and no "
            "schedule seen so far explains it",
            subject=Subject.LEARNING_RATE,
            value=rate,
            threshold=before * (1 + math.copysign(self.change, rate - before)),
        )

    @staticmethod
    def _is_scheduled_cut(ratio: float) -> bool:
        if not ratio < 1.0:
            return False
        twentieths = ratio * 20.0
        is_round = twentieths > 0.98 and abs(twentieths - round(twentieths)) < 0.02
        return is_round or any(abs(ratio * factor - 1.0) < 0.02 for factor in (3, 100))

    def _out_of_range(self, record: StepRecord, rate: float) -> Alert:
        line = self.high if rate > self.high else self.low
        return self.alert(
            record,
            severity=Severity.MEDIUM,
            category="learning_rate",
            kind="lr_out_of_range",
            cause=Cause.LEARNING_RATE,
            message=f"the learning rate {rate:.4g} is outside {self.low:g} ... {self.high:g}",
            subject=Subject.LEARNING_RATE,
            value=rate,
            threshold=line,
        )
