"""Runs whose loss has no usual course, because what they learn changes what they learn from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.records import StepRecord

REWARDS = ("reward", "mean_reward", "episode_reward", "return", "mean_return", "episode_return")
"""Observed values that say how well a policy does; the first that is there is judged."""

OF_PAIRS = "margin"
"""In the names of what is observed beside a reward model's or DPO's rewards: TRL's reward trainer
logs ``mean_reward`` and ``margin``, DPO's ``rewards/margins``; ours is ``reward_margin``."""


class MovingObjective(NamedState):
    """Marks the steps of reinforcement learning and of games (`StepRecord.has_moving_objective`).

    A run is one of reinforcement learning from the first step on that has a reward (not one of
    given pairs), or at which a library of environments or of agents is loaded
    (`supervisor.worker.core.step_probe`): `in_environment`. It is a game from the first step on
    at which a second optimizer learned from a backward of its own: `others_trained`. In neither are
    loss and norm treated as long as they are finite; in the former they are not judged either.

    Args:
        asked: the setting `in_environment`; False: it is no reinforcement learning, whatever is
            seen.
    """

    _state = ("is_game", "acts")

    def __init__(self, asked: bool | None) -> None:
        self._asked = asked
        self.is_game = False
        self.acts = False

    def mark(self, record: StepRecord) -> tuple[StepRecord, str]:
        """Returns the record with its marks, and why the run is one of reinforcement learning where
        this has just become known."""
        self.is_game = record.others_trained or (self.is_game and not record.begins_training)
        why = ""
        if (record.in_environment or record.observed) and not self.acts:
            why = self._recognise(record) if self._asked is not False else ""
        self.acts = self.acts or bool(why)
        if (record.in_environment, record.others_trained) != (self.acts, self.is_game):
            record = replace(record, in_environment=self.acts, others_trained=self.is_game)
        return record, why

    def _recognise(self, record: StepRecord) -> str:
        if record.in_environment:
            return "a library of environments or agents is loaded, or `in_environment` says so"
        return "a reward is observed" if record.observed and _has_reward(record.observed) else ""


def reward_of(observed: Mapping[str, float]) -> float:
    """The observed reward of a step; NaN without one."""
    if observed:
        for name in REWARDS:
            value = observed.get(name, math.nan)
            if math.isfinite(value):
                return value
    return math.nan


def _has_reward(observed: Mapping[str, float]) -> bool:
    return math.isfinite(reward_of(observed)) and not any(OF_PAIRS in name for name in observed)
