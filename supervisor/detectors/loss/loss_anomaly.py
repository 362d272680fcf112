"""A loss that leaves its recent course, in one step."""

from __future__ import annotations

from supervisor.detectors.base.signal_anomaly import SignalAnomalyDetector
from supervisor.records import StepRecord


class LossAnomalyDetector(SignalAnomalyDetector):
    """Fixed, dynamic and relative thresholds on the loss (settings: `SignalAnomalyDetector`)."""

    name = "loss_anomaly"
    noun = "loss"
    category = "loss"

    def signal(self, record: StepRecord) -> tuple[float, bool]:
        return record.loss, record.loss_seen
