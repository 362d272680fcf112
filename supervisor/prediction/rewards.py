"""Reinforcement learning: when a run is one, and what is judged of it then."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from supervisor.records import StepRecord

REWARDS = ("reward", "mean_reward", "episode_reward", "return", "mean_return", "episode_return")
"""Observed values that say how well a policy does; the first that is there is judged."""

OF_PAIRS = "margin"
"""In the names of what is observed beside a reward model's or DPO's rewards: TRL's reward trainer
logs ``mean_reward`` and ``margin``, DPO's ``rewards/margins``; ours is ``reward_margin``."""

STAYS_FINITE = frozenset({"loss_scale"})
"""Hazards that are no noise of rewards, returns, advantages, policy and value losses."""


class Reinforcement:
    """Marks the steps of a run of reinforcement learning: `StepRecord.in_environment`.

    A run is one from the first step on that has a reward (not one of given pairs), or at which a
    library of environments or of agents is loaded (`supervisor.worker.ground.environments`). What
    it learns changes its data, so losses and norms have no usual course: all that judges or treats
    looks at the mark, and only at what is not finite, a loss scale that falls, and the reward.

    Args:
        asked: the setting `in_environment`; False: it is none, whatever is seen.
    """

    def __init__(self, asked: bool | None) -> None:
        self._asked = asked
        self.is_on = False

    def mark(self, record: StepRecord) -> tuple[StepRecord, str]:
        """Returns the record, marked if the run is one of reinforcement learning, and why it is one
        where this has just become known."""
        if self._asked is False:
            return record, ""
        why = ""
        if not self.is_on:
            if record.in_environment:
                why = "a library of environments or agents is loaded, or `in_environment` says so"
            elif record.observed and _has_reward(record.observed):
                why = "a reward is observed"
            self.is_on = bool(why)
        if self.is_on and not record.in_environment:
            record = replace(record, in_environment=True)
        return record, why


def reward_of(observed: Mapping[str, float]) -> float:
    """The observed reward of a step; NaN without one."""
    for name in REWARDS:
        value = observed.get(name, math.nan)
        if math.isfinite(value):
            return value
    return math.nan


def _has_reward(observed: Mapping[str, float]) -> bool:
    return math.isfinite(reward_of(observed)) and not any(OF_PAIRS in name for name in observed)
