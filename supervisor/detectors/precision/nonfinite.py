"""NaN and infinity in the loss and the gradients."""

from __future__ import annotations

import math
from collections import deque

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord


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

    def __init__(
        self, *, overflow_limit: int = 4, overflow_window: int = 20, startup_limit: int = 12
    ) -> None:
        self.overflow_limit = overflow_limit
        self.overflow_window = overflow_window
        self.startup_limit = startup_limit
        self._begin()

    def _begin(self) -> None:
        self._overflows: deque[int] = deque(maxlen=self.overflow_window)
        self._seen = 0

    def forget_levels(self) -> None:
        """Does nothing: no change of data makes NaN normal."""

    def update(self, record: StepRecord) -> Alert | None:
        self._seen += 1
        self.score = 0.0
        if record.has_nonfinite_loss:
            self.score = 2.0
            return self._report(record, "loss", record.loss)
        scaled = math.isfinite(record.loss_scale) and record.loss_scale > 0
        if not record.has_nonfinite_grad:
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
