"""Rewards whose distribution moves."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord


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

    def __init__(
        self,
        *,
        line: float = 0.1,
        alpha: float = 1e-4,
        window: int = 50,
        every: int = 10,
        patience: int = 2,
    ) -> None:
        if window < 5:
            raise ValueError(f"window: expected 5 or more, got {window}")
        self.line = line
        self.alpha = alpha
        self.window = window
        self.every = every
        self.patience = patience
        self._begin()

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
        mean = math.fsum(now) / len(now)
        if mean > self._best_mean:
            self._best, self._best_mean = now, mean
            return None
        deviation = _deviation(self._best, self._best_mean)
        unit = max(abs(self._best_mean), deviation, 1e-12)
        return self._compare("reward", "a fall", self._best, now, unit)

    def _wander(self) -> dict[str, Any] | None:
        if len(self._scores) < 2 * self.window:
            return None
        values = list(self._scores)
        before, now = values[: self.window], values[self.window :]
        mean = math.fsum(before) / len(before)
        unit = max(self._spread, _deviation(before, mean), 1e-12)
        return self._compare("reward_score", "a drift", before, now, unit)

    def _compare(
        self, what: str, toward: str, before: list[float], now: list[float], unit: float
    ) -> dict[str, Any] | None:
        earlier, later = math.fsum(before) / len(before), math.fsum(now) / len(now)
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


def _deviation(values: list[float], mean: float) -> float:
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
