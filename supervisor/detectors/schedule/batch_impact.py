"""The effect of another batch size on loss and throughput."""

from __future__ import annotations

import math

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord


class BatchImpactDetector(Detector):
    """Compares medians of `window` steps before and after the batch size changed. Reports only.

    Args:
        window: steps on each side.
        line: relative change of loss or samples per second worth reporting; a median of 20 steps
            with 10 % noise is accurate to 3 %.
    """

    name = "batch_impact"
    _state = ("_size", "_loss", "_rate", "_before", "_after")

    def __init__(self, *, window: int = 20, line: float = 0.1) -> None:
        self.window = window
        self.line = line
        self._begin()

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
