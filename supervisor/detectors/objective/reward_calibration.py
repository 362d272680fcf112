"""A reward model that becomes less accurate, or surer than it should be."""

from __future__ import annotations

import math

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord


class RewardCalibrationDetector(Detector):
    """Accuracy and calibration of a reward model over `window` observations.

    It reads ``reward_accuracy`` and ``reward_confidence`` (of observed ``chosen_rewards`` and
    ``rejected_rewards``) and compares them with the best block so far. Calibration is 1 minus the
    distance between mean confidence and accuracy (Guo et al., 2017, with one bin).

    Args:
        poor_below: calibration below which it is poor whatever came before.
        drift: fall of accuracy or of calibration below their best block.
        errors: standard errors that a fall of accuracy must exceed.
        window: observations of a block.
        every: observations between two judgements.
        warmup: observations before the first judgement.
    """

    name = "reward_calibration"
    observed_only = True
    _state = (
        "_accuracy",
        "_gap",
        "_best_accuracy",
        "_best_calibration",
        "_since",
        "_seen",
        "_told",
    )

    def __init__(
        self,
        *,
        poor_below: float = 0.7,
        drift: float = 0.1,
        errors: float = 4.0,
        window: int = 50,
        every: int = 10,
        warmup: int = 50,
    ) -> None:
        self.poor_below = poor_below
        self.drift = drift
        self.errors = errors
        self.window = window
        self.every = every
        self.warmup = warmup
        self._begin()

    def _begin(self) -> None:
        self._accuracy = RobustWindow(self.window)
        self._gap = RobustWindow(self.window)
        self._best_accuracy = 0.0
        self._best_calibration = 0.0
        self._since = 0
        self._seen = 0
        self._told = ""

    def update(self, record: StepRecord) -> Alert | None:
        observed = record.observed
        if not observed or "reward_accuracy" not in observed:
            return None
        accuracy = observed["reward_accuracy"]
        if not 0.0 <= accuracy <= 1.0:
            return None
        self._accuracy.add(accuracy)
        confidence = observed.get("reward_confidence", math.nan)
        if 0.0 <= confidence <= 1.0:
            self._gap.add(confidence - accuracy)
        self._seen += 1
        self._since += 1
        full = len(self._accuracy) >= self.window
        if self._since < self.every or not full or self._seen < self.warmup:
            return None
        self._since = 0
        return self._judge(record)

    def _judge(self, record: StepRecord) -> Alert | None:
        accuracy = self._accuracy.mean
        calibration = 1.0 - abs(self._gap.mean) if len(self._gap) else 1.0
        self._best_accuracy = max(self._best_accuracy, accuracy)
        self._best_calibration = max(self._best_calibration, calibration)
        error = self._accuracy.std / math.sqrt(self.window)
        lost = self._best_accuracy - accuracy
        needed = max(self.drift, self.errors * error)
        off = self._best_calibration - calibration
        self.score = max(lost / needed, off / self.drift, (1.0 - calibration) / self._poor_gap())
        kind = ""
        if lost > needed:
            kind = "reward_accuracy_drop"
        elif calibration < self.poor_below:
            kind = "reward_calibration_poor"
        elif off > self.drift:
            kind = "reward_calibration_drift"
        fresh, self._told = kind != "" and kind != self._told, kind
        return self._report(record, kind, accuracy, calibration) if fresh else None

    def _poor_gap(self) -> float:
        return max(1e-6, 1.0 - self.poor_below)

    def _report(self, record: StepRecord, kind: str, accuracy: float, calibration: float) -> Alert:
        is_accuracy = kind == "reward_accuracy_drop"
        best = self._best_accuracy if is_accuracy else self._best_calibration
        poor = kind == "reward_calibration_poor"
        if is_accuracy:
            message = f"the reward model's accuracy has fallen from {best:.3g} to {accuracy:.3g}"
            advice = "look at the labels of the newest data, and at the learning rate"
        else:
            message = (
                f"the reward model's calibration is {calibration:.3g} (best {best:.3g}): it is "
                f"{accuracy:.0%} right, and not as sure as that"
            )
            advice = "regularise it, or stop earlier"
        return self.alert(
            record,
            severity=Severity.HIGH if is_accuracy else Severity.MEDIUM,
            category="reward",
            kind=kind,
            cause=Cause.DIVERGENCE,
            message=message,
            advice=advice,
            value=accuracy if is_accuracy else calibration,
            threshold=self.poor_below if poor else best - self.drift,
            metadata={"accuracy": accuracy, "calibration": calibration, "best": best},
        )
