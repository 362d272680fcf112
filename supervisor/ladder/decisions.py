"""How a decision is made and booked, whoever asks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.ladder.budget import Budget
from supervisor.ladder.guard import Guard
from supervisor.ladder.rungs import FREE
from supervisor.ladder.treatments import Treatments
from supervisor.records import CrashRisk, Decision, StepRecord
from supervisor.settings import PolicySettings

GUARD_RUNG = -1
UNDO_RUNG = -2
LONG_AGO = -(10**9)


class Decisions:
    """Makes every decision of a ladder: counts its steps, spends the budget, begins the trials.

    Attributes:
        tick: steps so far; a replayed step is a new one.
        lr_limit: up to which `limit_lr` holds the rate; NaN while it does not.
    """

    def __init__(
        self, policy: PolicySettings, guard: Guard, treatments: Treatments, budget: Budget
    ) -> None:
        self.policy = policy
        self.tick = 0
        self.lr_limit = math.nan
        self._guard, self._treatments, self._budget = guard, treatments, budget
        self._treated_at = LONG_AGO
        self._refused_at: dict[str, int] = {}

    @property
    def since_treatment(self) -> int:
        """Steps since the last treatment that the cooldown counts."""
        return self.tick - self._treated_at

    def treat(
        self, record: StepRecord, risk: CrashRisk, actions: tuple[str, ...], rung: int
    ) -> Decision:
        if not FREE.issuperset(actions) and actions != ("skip_update",):
            self.begin_cooldown()
            self._budget.spend()
        for name in actions:
            self._treatments.begin(
                name, record.step, self._guard.loss, cause=risk.cause.value, rung=rung
            )
        return Decision(
            step=record.step,
            actions=actions,
            rung=rung,
            cause=risk.cause,
            reason=risk.reason,
            subject=risk.subject,
            risk=risk.probability,
            onset_step=risk.onset_step if risk.onset_step >= 0 else record.step,
            dry_run=self.policy.observe_only,
            lr_limit=self.lr_limit if "limit_lr" in actions else math.nan,
        )

    def take_back(
        self, record: StepRecord, risk: CrashRisk, undo: tuple[str, ...], reason: str
    ) -> Decision:
        return Decision(
            step=record.step,
            actions=(),
            undo=undo,
            rung=UNDO_RUNG,
            reason=reason,
            risk=risk.probability,
            dry_run=self.policy.observe_only,
        )

    def begin_cooldown(self) -> None:
        self._treated_at = self.tick

    def refused(self, name: str) -> None:
        """What was decided did not apply: the next treatment need not wait for it.

        One that is refused again within a cooldown cannot be made here for now (the state is of
        another shape than its copies, say): it is not tried at every step.
        """
        if self.tick - self._refused_at.get(name, LONG_AGO) > self.policy.cooldown_steps:
            self._treated_at = LONG_AGO
        self._refused_at[name] = self.tick

    def state_dict(self) -> dict[str, Any]:
        return {
            "tick": self.tick,
            "treated_at": self._treated_at,
            "lr_limit": self.lr_limit,
            "refused_at": dict(self._refused_at),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tick = int(state["tick"])
        self._treated_at = int(state["treated_at"])
        self.lr_limit = float(state.get("lr_limit", math.nan))
        self._refused_at = {name: int(tick) for name, tick in state.get("refused_at", {}).items()}
