"""The scale of a GradScaler, the earliest warning in half precision."""

from __future__ import annotations

import math
from collections import deque

from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord


class LossScaleDetector(Detector):
    """A loss scale that is low or falls without growing again.

    Trouble is a scale below `warn_below`, below `severe_below`, or `backoffs` halvings within
    `window` steps without growth after start-up.

    Args:
        warn_below: scale under which gradients begin to lose their small values; healthy public
            runs do not go below 1,024.
        severe_below: scale below which fp16 is useless.
        backoffs: halvings in a row after which the scaler does not settle.
        window: steps within which they count.
        startup_steps: steps in which a scaler may come down from its initial scale.
    """

    name = "loss_scale"
    _state = ("_previous", "_halvings", "_seen", "_warned")

    def __init__(
        self,
        *,
        warn_below: float = 128.0,
        severe_below: float = 1.0,
        backoffs: int = 5,
        window: int = 50,
        startup_steps: int = 50,
    ) -> None:
        self.warn_below = warn_below
        self.severe_below = severe_below
        self.backoffs = backoffs
        self.window = window
        self.startup_steps = startup_steps
        self._begin()

    def _begin(self) -> None:
        self._previous = math.nan
        self._halvings: deque[int] = deque()
        self._seen = 0
        self._warned = 0

    def forget_levels(self) -> None:
        """Does nothing: the scale does not depend on the data."""

    def update(self, record: StepRecord) -> Alert | None:
        scale = record.loss_scale
        self.score = 0.0
        if not math.isfinite(scale) or scale <= 0:
            return None
        self._seen += 1
        self._count(scale)
        self._previous = scale
        level, alert = self._judge(record, scale)
        fresh = level > self._warned
        self._warned = level
        return alert if fresh else None

    def _count(self, scale: float) -> None:
        if scale > self._previous:
            self._halvings.clear()
        elif scale < self._previous:
            ratio = min(self._previous / scale, 2.0**64)
            times = max(1, round(math.log2(ratio)))
            if self._seen > self.startup_steps:
                self._halvings.extend([self._seen] * times)
        while self._halvings and self._halvings[0] <= self._seen - self.window:
            self._halvings.popleft()

    def _judge(self, record: StepRecord, scale: float) -> tuple[int, Alert | None]:
        count = len(self._halvings)
        low = self.warn_below / scale
        self.score = max(count / self.backoffs, min(low, 1.0) * 0.6 if low > 1 else 0.0)
        if scale < self.severe_below:
            self.score = 2.0
            return 3, self._report(record, Severity.CRITICAL, "loss_scale_exhausted", scale)
        if count >= self.backoffs:
            return 2, self._report(record, Severity.HIGH, "loss_scale_unstable", scale)
        if scale < self.warn_below:
            return 1, self._report(record, Severity.MEDIUM, "loss_scale_low", scale)
        return 0, None

    def _report(self, record: StepRecord, severity: Severity, kind: str, scale: float) -> Alert:
        return self.alert(
            record,
            severity=severity,
            category="precision",
            kind=kind,
            cause=Cause.LOSS_SCALE,
            message=f"the loss scale is {scale:g} after {len(self._halvings)} halvings within "
            f"{self.window} steps",
            advice="look for overflowing activations, or use bf16 or fp32",
            value=scale,
            threshold=self.warn_below,
            metadata={"halvings": len(self._halvings)},
        )
