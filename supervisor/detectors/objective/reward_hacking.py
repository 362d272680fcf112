"""A policy that wins reward by leaving its reference."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord


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

    def __init__(
        self, *, kl_limit: float = 10.0, window: int = 50, errors: float = 3.0, every: int = 10
    ) -> None:
        if window < 4:
            raise ValueError(f"window: expected 4 or more, got {window}")
        self.kl_limit = kl_limit
        self.window = window
        self.errors = errors
        self.every = every
        self._begin()

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
