"""NaN and infinity, and the scale of a GradScaler."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord


@dataclass(kw_only=True, eq=False, repr=False)
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

    warn_below: float = 128.0
    severe_below: float = 1.0
    backoffs: int = 5
    window: int = 50
    startup_steps: int = 50

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


@dataclass(kw_only=True, eq=False, repr=False)
class NonfiniteDetector(Detector):
    """A loss or gradient that is NaN or infinite.

    Under a loss scaler a non-finite gradient with a finite loss is normal, and trouble only when it
    repeats: that is how the scaler finds its scale.

    Args:
        overflow_limit: non-finite gradients under a scaler within `overflow_window` steps that are
            still normal; a settled scaler has one in 2,000 steps.
        overflow_window: steps.
        startup_limit: the same within the first `overflow_window` steps, while the scale comes down
            from its initial value (2^16 in PyTorch).
    """

    name = "nonfinite"
    _state = ("_overflows", "_seen")

    overflow_limit: int = 4
    overflow_window: int = 20
    startup_limit: int = 12

    def _begin(self) -> None:
        self._overflows: deque[int] = deque(maxlen=self.overflow_window)
        self._seen = 0

    def forget_levels(self) -> None:
        """Does nothing: no change of data makes NaN normal."""

    def update(self, record: StepRecord) -> Alert | None:
        self._seen += 1
        self.score = 0.0
        if record.loss_seen and not math.isfinite(record.loss):
            self.score = 2.0
            return self._report(record, "loss", record.loss)
        scaled = math.isfinite(record.loss_scale) and record.loss_scale > 0
        if not record.grad_norm_seen or math.isfinite(record.grad_norm):
            if scaled:
                self._overflows.append(0)
            return None
        if not scaled:
            self.score = 2.0
            return self._report(record, "grad", record.grad_norm)
        return self._judge_overflow(record)

    def _judge_overflow(self, record: StepRecord) -> Alert | None:
        self._overflows.append(1)
        count = sum(self._overflows)
        starting = self._seen <= 2 * self.overflow_window
        limit = self.startup_limit if starting else self.overflow_limit
        self.score = min(1.9, count / (limit + 1))
        if count <= limit:
            return None
        return self.alert(
            record,
            severity=Severity.HIGH,
            category="precision",
            kind="repeated_overflow",
            cause=Cause.LOSS_SCALE,
            message=f"{count} non-finite gradients within {len(self._overflows)} steps under the "
            f"loss scaler (scale {record.loss_scale:g}): lowering the scale does not help",
            advice="look for the layer that overflows, or use bf16",
            value=count,
            threshold=limit,
        )

    def _report(self, record: StepRecord, what: str, value: float) -> Alert:
        noun = "loss" if what == "loss" else "gradient norm"
        shown = "NaN" if math.isnan(value) else "infinite"
        return self.alert(
            record,
            severity=Severity.CRITICAL,
            category="loss" if what == "loss" else "gradient",
            kind=f"nonfinite_{what}",
            cause=Cause.NONFINITE,
            message=f"the {noun} is {shown}",
            advice="look at this step's batch and at what it feeds",
            subject=Subject.LOSS if what == "loss" else Subject.GRADIENT,
            value=value,
        )
