"""Rewards that move or are hacked, and reward models that are less accurate than they are sure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, pstdev
from typing import Any

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord


@dataclass(kw_only=True, eq=False, repr=False)
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

    poor_below: float = 0.7
    drift: float = 0.1
    errors: float = 4.0
    window: int = 50
    every: int = 10
    warmup: int = 50

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


@dataclass(kw_only=True, eq=False, repr=False)
class RewardDriftDetector(Detector):
    """Compares the last `window` observations with an earlier block of the run.

    * ``reward`` of a policy: only a fall is trouble. The reference is the best block so far.
    * ``reward_score`` of a reward model (mean over both texts of a pair): a drift in either
      direction is trouble. The reference is the block before this one, the unit ``reward_spread``.

    Both a shift and a two-sample test (Kolmogorov-Smirnov) must agree.

    Args:
        line: shift that counts, as a share of the reference's level or spread, whichever is larger.
        alpha: significance level of the test.
        window: observations of a block.
        every: observations between two judgements.
        patience: judgements in a row.
    """

    name = "reward_drift"
    observed_only = True
    _state = ("_rewards", "_scores", "_best", "_best_mean", "_spread", "_since", "_count", "_told")

    line: float = 0.1
    alpha: float = 1e-4
    window: int = 50
    every: int = 10
    patience: int = 2

    def __post_init__(self) -> None:
        if self.window < 5:
            raise ValueError(f"window: expected 5 or more, got {self.window}")
        super().__post_init__()

    def _begin(self) -> None:
        self._rewards: deque[float] = deque(maxlen=self.window)
        self._scores: deque[float] = deque(maxlen=2 * self.window)
        self._best: list[float] = []
        self._best_mean = -math.inf
        self._spread = 0.0
        self._since = 0
        self._count = 0
        self._told = False

    def update(self, record: StepRecord) -> Alert | None:
        observed = record.observed
        if not observed:
            return None
        reward, score = observed.get("reward"), observed.get("reward_score")
        if reward is None and score is None:
            return None
        if reward is not None and abs(reward) < 1e150:
            self._rewards.append(reward)
        if score is not None and abs(score) < 1e150:
            self._scores.append(score)
            spread = observed.get("reward_spread", math.nan)
            if 0.0 <= spread < 1e150:
                self._spread += 0.05 * (spread - self._spread)
        self._since += 1
        if self._since < self.every:
            return None
        self._since = 0
        return self._judge(record)

    def _judge(self, record: StepRecord) -> Alert | None:
        found = self._fall() or self._wander()
        self.score = min(10.0, found["shift"] / self.line) if found else 0.0
        self._count = self._count + 1 if found else 0
        if self._count < self.patience:
            self.score = min(self.score, 0.9)
        fresh = self._count >= self.patience and not self._told
        self._told = self._count > 0 and (self._told or fresh)
        if not (fresh and found):
            return None
        what, toward = found["what"], found["toward"]
        return self.alert(
            record,
            severity=Severity.MEDIUM,
            category="reward",
            kind=f"{what}_drift",
            cause=Cause.COLLAPSE if what == "reward" else Cause.DIVERGENCE,
            message=f"the {what.replace('_', ' ')} has moved from {found['before']:.4g} to "
            f"{found['now']:.4g} ({toward}), {self.window} observations against {self.window}; "
            "look at what the data or the policy has become",
            value=found["shift"],
            threshold=self.line,
            metadata={"before": found["before"], "now": found["now"], "ks": found["ks"]},
        )

    def _fall(self) -> dict[str, Any] | None:
        if len(self._rewards) < self.window:
            return None
        now = list(self._rewards)
        mean = fmean(now)
        if mean > self._best_mean:
            self._best, self._best_mean = now, mean
            return None
        unit = max(abs(self._best_mean), pstdev(self._best), 1e-12)
        return self._compare("reward", "a fall", self._best, now, unit)

    def _wander(self) -> dict[str, Any] | None:
        if len(self._scores) < 2 * self.window:
            return None
        values = list(self._scores)
        before, now = values[: self.window], values[self.window :]
        unit = max(self._spread, pstdev(before), 1e-12)
        return self._compare("reward_score", "a drift", before, now, unit)

    def _compare(
        self, what: str, toward: str, before: list[float], now: list[float], unit: float
    ) -> dict[str, Any] | None:
        earlier, later = fmean(before), fmean(now)
        shift = abs(later - earlier) / unit
        if shift <= self.line:
            return None
        from scipy.stats import ks_2samp  # takes a second to import: only for a reward that moved

        test = ks_2samp(before, now, method="asymp")
        if test.pvalue >= self.alpha:
            return None
        return {
            "what": what,
            "toward": toward,
            "before": earlier,
            "now": later,
            "shift": shift,
            "ks": float(test.statistic),
        }


@dataclass(kw_only=True, eq=False, repr=False)
class RewardHackingDetector(Detector):
    """The observed reward rises while the policy's KL from its reference rises past a limit.

    It reads ``reward`` and ``kl_to_reference`` (or ``kl``), in nats per sequence: beyond some ten
    nats the rewarded score goes on rising while the true one falls (arXiv 2210.10760). Both must
    rise between the two halves of the window by more than their noise.

    Args:
        kl_limit: nats below which a rising KL is normal.
        window: observations.
        errors: standard errors by which a half must lie above the other.
        every: observations between two judgements.
    """

    name = "reward_hacking"
    observed_only = True
    _state = ("_rewards", "_distances", "_since", "_told")

    kl_limit: float = 10.0
    window: int = 50
    errors: float = 3.0
    every: int = 10

    def __post_init__(self) -> None:
        if self.window < 4:
            raise ValueError(f"window: expected 4 or more, got {self.window}")
        super().__post_init__()

    def _begin(self) -> None:
        self._rewards: deque[float] = deque(maxlen=self.window)
        self._distances: deque[float] = deque(maxlen=self.window)
        self._since = 0
        self._told = False

    def update(self, record: StepRecord) -> Alert | None:
        observed = record.observed
        if not observed or "reward" not in observed:
            return None
        reward = observed["reward"]
        distance = observed.get("kl_to_reference", observed.get("kl", math.nan))
        if not (abs(reward) < 1e150 and abs(distance) < 1e150):
            return None
        self._rewards.append(reward)
        self._distances.append(distance)
        self._since += 1
        if self._since < self.every or len(self._rewards) < self.window:
            return None
        self._since = 0
        return self._judge(record)

    def _judge(self, record: StepRecord) -> Alert | None:
        reward, reward_errors = _rise(self._rewards)
        distance, distance_errors = _rise(self._distances)
        late = math.fsum(islice(self._distances, self.window // 2, None))
        level = late / (self.window - self.window // 2)
        rising = reward_errors > self.errors and distance_errors > self.errors
        self.score = min(10.0, max(0.0, level / self.kl_limit)) if rising else 0.0
        is_far = self.score >= 1.0
        fresh, self._told = is_far and not self._told, is_far or (self._told and rising)
        if not fresh:
            return None
        return self.alert(
            record,
            severity=Severity.HIGH,
            category="reward",
            kind="reward_hacking",
            cause=Cause.COLLAPSE,
            message=f"the reward has risen by {reward:.3g} while the policy went {distance:.3g} "
            "nats "
            f"further from its reference, to {level:.3g}: read some of its outputs; raise the KL "
            "weight or stop earlier",
            value=level,
            threshold=self.kl_limit,
            metadata={"reward_rise": reward, "kl_rise": distance},
        )


def _rise(values: deque[float]) -> tuple[float, float]:
    """Returns the rise of the later half's mean, in its own unit and in standard errors."""
    half = len(values) // 2
    early, late = list(islice(values, half)), list(islice(values, half, None))
    first, last = math.fsum(early) / len(early), math.fsum(late) / len(late)
    noise = math.fsum((v - first) ** 2 for v in early) / len(early) ** 2
    noise += math.fsum((v - last) ** 2 for v in late) / len(late) ** 2
    rise = last - first
    if rise <= 0.0:
        return rise, 0.0
    return rise, rise / math.sqrt(noise) if noise > 0.0 else 1e9
