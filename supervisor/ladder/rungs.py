"""The rungs of a policy, and which of them were tried in this episode of trouble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.ladder.guard import CERTAIN
from supervisor.ladder.trial_steps import TRIAL_STEP
from supervisor.records import Cause, CrashRisk
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings, RungSettings

FREE = frozenset({"checkpoint", TRIAL_STEP})
"""Actions that treat nothing: no budget, a cooldown of their own."""

BY_NAME = frozenset({Cause.REWARD})
"""Causes that are treated only where a policy names them: rewards fall while a policy explores."""

LAST_RESORTS = frozenset({"restart", "stop"})
"""Actions that are reached by escalation only."""


class Rungs:
    """Chooses the rung to try next; what an episode has tried is forgotten when it ends.

    Rungs are named by their index in the policy, the mildest first.

    Attributes:
        begins: of each rung, the risk from which it applies.
        lowest: risk below which none does.
    """

    def __init__(self, policy: PolicySettings) -> None:
        self._policy = policy
        self._lines = RiskLines.of(policy)
        self.begins = [self._begin_of(rung) for rung in policy.rungs]
        self.lowest = min(self.begins, default=1.0)
        self._tried: list[int] = []
        self._tried_by_cause: dict[str, int] = {}

    def forget(self) -> None:
        """The episode is over."""
        self._tried = []
        self._tried_by_cause = {}

    def actions(self, index: int) -> tuple[str, ...]:
        return tuple(self._policy.rungs[index].actions)

    def fitting(self, risk: CrashRisk) -> list[int]:
        """Those that apply at this risk and cause; a cause of `BY_NAME` must be among theirs."""
        if risk.probability < self.lowest:
            return []
        found = []
        for index, rung in enumerate(self._policy.rungs):
            is_any = not rung.causes and (risk.cause not in BY_NAME or self.is_free(index))
            fits = is_any or risk.cause.value in rung.causes
            if fits and 0.0 < risk.probability >= self.begins[index]:
                found.append(index)
        return found

    def _begin_of(self, rung: RungSettings) -> float:
        """Nothing treats below the alarm line, whatever its rung says; saving is free to."""
        if FREE.issuperset(rung.actions):
            return self._lines.warn if rung.at is None else rung.at
        return max(rung.at or 0.0, self._lines.alarm)

    def is_free(self, index: int) -> bool:
        """Whether it changes nothing of the training's course."""
        return FREE.issuperset(self._policy.rungs[index].actions)

    def with_action(self, action: str, cause: Cause | None = None) -> int | None:
        """The lowest rung that has `action`; with a cause, of those for it."""
        for index, rung in enumerate(self._policy.rungs):
            fits = cause is None or not rung.causes or cause.value in rung.causes
            if fits and action in rung.actions:
                return index
        return None

    def own_list(self, risk: CrashRisk) -> list[str]:
        """Actions that the policy prefers for this cause and that were not tried yet."""
        if not self._lines.is_alarm(risk.probability):
            return []
        own = list(self._policy.by_cause.get(risk.cause.value, []))
        return own[self._tried_by_cause.get(risk.cause.value, 0) :]

    def take_own(self, cause: Cause) -> None:
        """The first of `own_list` is being tried."""
        self._tried_by_cause[cause.value] = self._tried_by_cause.get(cause.value, 0) + 1

    def take(self, index: int) -> None:
        """That rung is being tried."""
        self._tried.append(index)

    def next(self, risk: CrashRisk, fitting: list[int], *, rolled_back: bool) -> int | None:
        """The mildest not yet tried, or the one that rolls back when trouble is certain.

        Args:
            risk: of this step.
            fitting: the rungs to choose from.
            rolled_back: a rollback was tried in this episode: the last resorts may be.
        """
        rollback = self.with_action("rollback")
        fresh = [i for i in fitting if i not in self._tried]
        milder = [i for i in fresh if not self._is_last_resort(i)]
        if not rolled_back and rollback is not None and rollback not in self._tried:
            if risk.probability >= CERTAIN and rollback in milder:
                return rollback
            fresh = milder
        fresh = milder or fresh
        return fresh[0] if fresh else None

    def _is_last_resort(self, index: int) -> bool:
        return not LAST_RESORTS.isdisjoint(self._policy.rungs[index].actions)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tried": list(self._tried),
            "tried_by_cause": dict(self._tried_by_cause),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._tried = list(state["tried"])
        self._tried_by_cause = dict(state["tried_by_cause"])
