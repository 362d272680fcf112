"""A gradient norm that leaves its recent course, in one step."""

from __future__ import annotations

from supervisor.detectors.base.signal_anomaly import SignalAnomalyDetector
from supervisor.records import StepRecord


class GradientAnomalyDetector(SignalAnomalyDetector):
    """Fixed, dynamic and relative thresholds on the norm (settings: `SignalAnomalyDetector`)."""

    name = "gradient_anomaly"
    noun = "gradient norm"
    category = "gradient"

    def signal(self, record: StepRecord) -> tuple[float, bool]:
        return record.grad_norm, record.grad_norm_seen
