"""Losses that stand still, stop falling, diverge, or rise too slowly for a sliding window."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.changes import ChangeWatch
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.detectors.statistics.run_scale import RunScale
from supervisor.records import Alert, Cause, Severity, StepRecord


@dataclass(kw_only=True, eq=False, repr=False)
class ConstantLossDetector(Detector):
    """Says once that a training stands still: its loss has been the same number for many steps.

    With a gradient that is zero as well nothing is learned any more: all is learned by heart, or
    the network is dead. With a gradient the loss is not what is minimised (a surrogate, a constant
    in its place). It reports only: both are healthy now and then. Told again when the loss has
    changed and is constant for as long once more, at another value.

    Args:
        steps: in a row. Losses of batches differ in their last digits, in half precision, too.
    """

    name = "constant_loss"
    _state = ("_value", "_count", "_moving", "_told")

    steps: int = 100

    def _begin(self) -> None:
        self._value = math.nan
        self._count = 0
        self._moving = 0
        self._told = math.nan

    def update(self, record: StepRecord) -> Alert | None:
        self.score = 0.0
        if not record.loss_seen or not math.isfinite(record.loss):
            return None
        if record.loss != self._value:
            self._value, self._count, self._moving = record.loss, 0, 0
        self._count += 1
        self._moving += record.grad_norm_seen and record.grad_norm != 0.0
        if self._count < self.steps:
            return None
        self.score = 1.0
        if self._count > self.steps or record.loss == self._told:
            return None
        self._told = record.loss
        return self._report(record)

    def _report(self, record: StepRecord) -> Alert:
        severity, cause, kind = Severity.LOW, Cause.PLATEAU, "loss_constant"
        said, advice = "", "look at what the loss is made of"
        if record.grad_norm_seen and not self._moving:
            kind, said = "training_stands_still", ", and its gradient exactly 0"
            advice = "either all of the data is learned by heart, or no unit is active any more"
            if record.loss:
                severity, cause = Severity.HIGH, Cause.DEAD_UNITS
                advice = "the loss reaches no weight: dead units, a detached loss, or underflow"
        elif record.grad_norm_seen:
            said = ", while there is a gradient"
        return self.alert(
            record,
            severity=severity,
            category="convergence",
            kind=kind,
            cause=cause,
            message=f"the loss has been exactly {record.loss:.6g} for {self.steps} steps{said}",
            advice=advice,
            subject=Subject.LOSS,
            value=record.loss,
            threshold=float(self.steps),
        )


@dataclass(kw_only=True, eq=False, repr=False)
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

    window: int = 50
    plateau_below: float = 0.001
    diverge_above: float = 0.1
    errors: float = 3.0
    patience: int = 10

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
    spread = math.fsum([(value - mean) ** 2 for value in values]) / max(1, count - 1)
    return mean, math.sqrt(spread / count)


PARTS = 5


@dataclass(kw_only=True, eq=False, repr=False)
class SlowDivergenceDetector(Detector):
    """Compares the mean (of logarithms) of the last block of steps with the best block of the run.

    The alarm line is a rise of `min_rise` and of `errors` standard errors of a block's mean above
    the best, and the loss must rise within this block and within the one before: a level that
    jumped once and then stays or falls is another data set, not a divergence.
    On public logs two runs that collapsed were seen 500 and 1,500 steps before they had, without
    a false alarm in 170,000 steps.

    Args:
        block: steps of a block.
        every: steps between two looks.
        min_rise: relative rise above the best block.
        errors: standard errors above the best block.
        rising_errors: a block rises when its second half lies so many standard errors above the
            first.
        hold_after_change: steps after a change of learning rate or batch size without judgement;
            the best block is forgotten then.
        adopt_looks: looks at a higher level after which it becomes the new best.
    """

    name = "slow_divergence"
    _state = (
        "_window", "_change", "_best", "_since_look", "_looks", "_above", "_negative", "_scale"
    )  # fmt: skip

    block: int = 100
    every: int = 25
    min_rise: float = 0.1
    errors: float = 10.0
    rising_errors: float = 2.0
    hold_after_change: int = 200
    adopt_looks: int = 200

    def _begin(self) -> None:
        self._window = RobustWindow(self.block)
        self._scale = RunScale()
        self._change = ChangeWatch()
        self._best = math.inf
        self._since_look = 0
        self._looks: list[float] = []
        self._above = 0
        self._negative = False

    def update(self, record: StepRecord) -> Alert | None:
        if self._change.update(record):
            self._forget()
        if not record.loss_seen or not math.isfinite(record.loss):
            return None
        if record.loss < 0 and not self._negative:
            self._negative = True
            self._forget()
        loss = record.loss
        self._scale.update(loss)
        if not self._negative:
            loss = max(loss, self._scale.floor)
            if not loss:
                return None  # zero, in a run of which no size is known yet
        self._window.add(loss if self._negative else math.log(loss))
        self._since_look += 1
        if self._since_look < self.every or len(self._window) < self.block:
            return None
        self._since_look = 0
        return self._look(record)

    def _forget(self) -> None:
        self._best = math.inf
        self._looks = []
        self._above = 0
        self.score = 0.0
        self._window.clear()

    def _look(self, record: StepRecord) -> Alert | None:
        # The mean, because the median of a loss with two modes leaps between them.
        level = self._window.mean
        error = self._error_of_mean()
        rise = math.log1p(self.min_rise)
        if self._negative:
            rise = self.min_rise * abs(self._best) if math.isfinite(self._best) else 0.0
        width = max(rise, self.errors * error)
        was_above = self.score >= 1.0
        blocks_apart = max(1, self.block // self.every)
        self._looks = [*self._looks[-blocks_apart:], self._half_rise(2.0 * error)]
        excess = level - self._best
        self.score = max(0.0, excess / width) if math.isfinite(excess) and width > 0 else 0.0
        settles = self._is_falling() if was_above else not self._is_rising()
        if self.score >= 1.0 and settles:
            self.score = 0.9
        self._above = self._above + 1 if excess > width else 0
        if self._above >= self.adopt_looks:
            self._best, self._above, self.score = level, 0, 0.0
        self._best = min(self._best, level)
        if self.score < 1.0 or was_above or self._change.since < self.hold_after_change:
            if self._change.since < self.hold_after_change:
                self.score = min(self.score, 0.4)
            return None
        return self._report(record, level, width)

    def _error_of_mean(self) -> float:
        """Neighbouring losses may be alike: where the means of tenths of the block differ by more
        than independent noise explains, those differences count."""
        values = list(self._window.held)
        size = max(1, len(values) // PARTS)
        means = [math.fsum(values[i * size : (i + 1) * size]) / size for i in range(PARTS)]
        squares = [(after - before) ** 2 for before, after in itertools.pairwise(means)]
        apart = math.sqrt(0.5 * math.fsum(squares) / len(squares) / PARTS)
        return max(apart, self._window.std / math.sqrt(len(values)))

    def _half_rise(self, error: float) -> float:
        """By how many standard errors the second half of the block lies above the first."""
        values = list(self._window.held)
        half = len(values) // 2
        rise = (sum(values[half:]) - sum(values[:half])) / half
        return rise / error if error > 0 else 0.0

    def _is_rising(self) -> bool:
        """In this block and in the one before, which shares no step with it."""
        looks = self._looks
        if len(looks) <= max(1, self.block // self.every):
            return False
        return min(looks[0], looks[-1]) > self.rising_errors

    def _is_falling(self) -> bool:
        return self._looks[-1] < 0.0

    def _report(self, record: StepRecord, level: float, width: float) -> Alert:
        best, line = self._best, self._best + width
        if not self._negative:
            level, best, line = math.exp(level), math.exp(best), math.exp(line)
        return self.alert(
            record,
            severity=Severity.HIGH,
            category="loss",
            kind="slow_divergence",
            cause=Cause.DIVERGENCE,
            message=f"the mean loss of {self.block} steps has risen from {best:.6g} to "
            f"{level:.6g} and rises still",
            advice="the learning rate may be too high",
            subject=Subject.LOSS,
            value=level,
            threshold=line,
            metadata={"best": best},
        )
