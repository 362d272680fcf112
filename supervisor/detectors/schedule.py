"""The learning rate, a start that is too hot, and the effect of another batch size."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow, is_leap
from supervisor.records import Alert, Cause, Severity, StepRecord


@dataclass(kw_only=True, eq=False, repr=False)
class BatchImpactDetector(Detector):
    """Compares medians of `window` steps before and after the batch size changed. Reports only.

    Args:
        window: steps on each side.
        line: relative change of loss or samples per second worth reporting; a median of 20 steps
            with 10 % noise is accurate to 3 %.
    """

    name = "batch_impact"
    _state = ("_size", "_loss", "_rate", "_before", "_after")

    window: int = 20
    line: float = 0.1

    def _begin(self) -> None:
        self._size = 0
        self._loss = RobustWindow(self.window)
        self._rate = RobustWindow(self.window)
        self._before: list[float] = []
        self._after = 0

    def update(self, record: StepRecord) -> Alert | None:
        self.score = 0.0
        if record.batch_size <= 0:
            return None
        if record.batch_size != self._size:
            self._change(record.batch_size)
        if record.loss_seen:
            self._loss.add(record.loss)
        if record.step_time_s > 0 and math.isfinite(record.step_time_s):
            self._rate.add(min(record.batch_size / record.step_time_s, 1e300))
        self._after += 1
        if not self._before or self._after != self.window:
            return None
        return self._compare(record)

    def _change(self, size: int) -> None:
        # a size that lasted less than a window (the last batch of an epoch) was not set
        if self._after >= self.window:
            self._before = [self._loss.median, self._rate.median, float(self._size)]
        elif self._before and size != self._before[2]:
            self._before = []
        self._size, self._after = size, 0
        self._loss.clear()
        self._rate.clear()

    def _compare(self, record: StepRecord) -> Alert | None:
        loss, rate, size = self._before
        self._before = []
        if size == self._size:
            return None
        changes = {"loss": _relative(loss, self._loss.median)}
        changes["throughput"] = _relative(rate, self._rate.median)
        largest = max(changes, key=lambda name: abs(changes[name]))
        self.score = min(10.0, abs(changes[largest]) / self.line)
        if self.score <= 1.0:
            return None
        return self.alert(
            record,
            severity=Severity.LOW,
            category="data",
            kind="batch_size_impact",
            cause=Cause.OTHER,
            message=f"batch size {size:g} → {self._size}: loss {changes['loss']:+.0%}, throughput "
            f"{changes['throughput']:+.0%}; the learning rate may have to follow",
            value=changes[largest],
            threshold=self.line,
            metadata={"from": int(size), "to": self._size, **changes},
        )


def _relative(before: float, after: float) -> float:
    if not (math.isfinite(before) and math.isfinite(after)) or before == 0:
        return 0.0
    return max(-1e6, min(1e6, (after - before) / abs(before)))


LOOK = 40
"""Steps over which the loss and the norm are compared with the first ones."""

EVERY = 10
EARLY = 5


@dataclass(kw_only=True, eq=False, repr=False)
class HotStartDetector(Detector):
    """The loss of a young run stands where it began, and its gradient norm says why.

    Two courses are told, both of runs whose rate is 10 to 100 times too high:

    * The norm rose to `times` its first value, and is now less than half of that value: the first
      updates have thrown the weights to where nothing is learned (dead ReLUs, saturated gates).
    * The loss lies above the first one, and the norm at `times` its first value: the updates are
      too long for any of them to help.

    A loss stands if three quarters of the last `LOOK` values are above `standing` x the first one,
    and where the quartiles lie a leap apart, a leap above the first `EARLY` values: one loss of a
    single sample says nothing. A healthy run stands like that only while its norm hardly changes
    (warm-up, a slow first plateau).
    Adversarial losses, environments and losses that are not positive are not judged.

    Args:
        first_look: steps until the first judgement.
        last_look: steps after which the start is over.
        standing: share of the first loss.
        times: of the first norm.
    """

    name = "hot_start"
    _state = (
        "_losses",
        "_norms",
        "_first_loss",
        "_first_norm",
        "_highest",
        "_early_high",
        "_update",
        "_seen",
    )

    first_look: int = 60
    last_look: int = 150
    standing: float = 0.97
    times: float = 3.0

    def _begin(self) -> None:
        self._losses: deque[float] = deque(maxlen=LOOK)
        self._norms: deque[float] = deque(maxlen=LOOK)
        self._first_loss = math.nan
        self._first_norm = math.nan
        self._highest = 0.0
        self._early_high = 0.0
        self._update = 0.0
        self._seen = 0

    def forget_levels(self) -> None:
        """Other data: the first steps are no yardstick any more."""
        self._end()

    def _end(self) -> None:
        self.score = 0.0
        self._seen = self.last_look + 1
        self._losses.clear()
        self._norms.clear()

    def update(self, record: StepRecord) -> Alert | None:
        self.score = 0.0
        if self._seen > self.last_look:
            return None
        if record.has_moving_objective:
            self._end()
            return None
        self._update = max(self._update, record.observed.get("update_ratio", 0.0))
        seen = record.loss_seen and record.grad_norm_seen
        if not seen or not math.isfinite(record.loss) or not math.isfinite(record.grad_norm):
            return None
        if not self._seen:
            self._first_loss, self._first_norm = record.loss, record.grad_norm
        if record.loss <= 0.0 or self._first_norm <= 0.0:
            self._end()
            return None
        self._seen += 1
        if self._seen <= EARLY:
            self._early_high = max(self._early_high, record.loss)
        self._losses.append(record.loss)
        self._norms.append(record.grad_norm)
        self._highest = max(self._highest, record.grad_norm)
        if self._seen < self.first_look or self._seen % EVERY:
            return None
        return self._look(record)

    def _look(self, record: StepRecord) -> Alert | None:
        losses, norms = sorted(self._losses), sorted(self._norms)
        quarter, middle = len(losses) // 4, len(losses) // 2
        low, high = losses[quarter], losses[-quarter]
        if low < self.standing * self._first_loss:
            return None
        if is_leap(high, low) and not is_leap(low, self._early_high):
            return None
        loss, norm = losses[middle], norms[middle] / self._first_norm
        rose = self._highest / self._first_norm
        if rose >= self.times and norm <= 0.5:
            fact = f"rose to {rose:.3g} times its first value and has fallen to {norm:.2g} of it"
        elif norm >= self.times and loss >= self._first_loss:
            fact = f"has grown to {norm:.3g} times its first value"
        else:
            return None
        first, seen, update = self._first_loss, self._seen, self._update
        self._end()
        self.score = 1.0
        moved = f"; an update changed a layer by {update:.0%} of its weight" if update else ""
        return self.alert(
            record,
            severity=Severity.HIGH,
            category="learning_rate",
            kind="rate_too_high_from_start",
            cause=Cause.LEARNING_RATE,
            message=f"the loss is {loss:.4g} after {seen} steps, as at first ({first:.4g}), and "
            f"the gradient norm {fact}{moved}",
            advice="the learning rate is probably 10 to 100 times too high",
            subject=Subject.LOSS,
            value=loss,
            threshold=self.standing * first,
            metadata={"norm_rose": rose, "norm": norm, "update_ratio": update},
        )


FEWEST_STEPS = 10
"""Steps before a change can be sudden; a warm-up doubles the rate at its first step and grows by
less than `change` from the fifth on."""
LOW_STEPS = 100
"""Steps at a low rate before it is reported; a warm-up by epochs keeps its first rate for some
ten."""


@dataclass(kw_only=True, eq=False, repr=False)
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

    low: float = 1e-8
    high: float = 1.0
    change: float = 0.3
    steady: float = 0.02
    memory: int = 16

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
        self._was_usual = self._was_usual or rate >= self.low
        if self._was_usual or rate == 0:
            self._low_steps = 0
        else:
            self._low_steps = self._low_steps + 1 if rate == before else 1
        out = rate > self.high or self._low_steps >= LOW_STEPS
        fresh, self._out = out and not self._out, out
        if out:
            self.score = 1.0
        leap = None
        if before > 0 and rate != before:
            leap = self._judge_change(record, before, rate)
        elif self._moving:
            self._moving -= 1
        return self._out_of_range(record, rate) if fresh else leap

    def _judge_change(self, record: StepRecord, before: float, rate: float) -> Alert | None:
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
