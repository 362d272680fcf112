"""A loss that rises so slowly that every sliding window gets used to it."""

from __future__ import annotations

import itertools
import math

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.changes import ChangeWatch
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.detectors.statistics.run_scale import RunScale
from supervisor.records import Alert, Cause, Severity, StepRecord

PARTS = 5


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

    def __init__(
        self,
        *,
        block: int = 100,
        every: int = 25,
        min_rise: float = 0.1,
        errors: float = 10.0,
        rising_errors: float = 2.0,
        hold_after_change: int = 200,
        adopt_looks: int = 200,
    ) -> None:
        self.block = block
        self.every = every
        self.min_rise = min_rise
        self.errors = errors
        self.rising_errors = rising_errors
        self.hold_after_change = hold_after_change
        self.adopt_looks = adopt_looks
        self._begin()

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
            loss = self._scale.clamp(loss)
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
        values = self._window.values()
        size = max(1, len(values) // PARTS)
        means = [math.fsum(values[i * size : (i + 1) * size]) / size for i in range(PARTS)]
        squares = [(after - before) ** 2 for before, after in itertools.pairwise(means)]
        apart = math.sqrt(0.5 * math.fsum(squares) / len(squares) / PARTS)
        return max(apart, self._window.std / math.sqrt(len(values)))

    def _half_rise(self, error: float) -> float:
        """By how many standard errors the second half of the block lies above the first."""
        values = self._window.values()
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
