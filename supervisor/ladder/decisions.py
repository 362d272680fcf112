"""How a decision is made and booked, whoever asks for it.

How often a run may be treated before something stronger must be done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.ladder.guard import Guard
from supervisor.ladder.rungs import FREE
from supervisor.ladder.treatments import Treatments
from supervisor.records import CrashRisk, Decision, StepRecord
from supervisor.settings import BudgetSettings, PolicySettings


class Budget:
    """Counts treatments by run and by hour, and rollbacks without calm between them.

    Time is the sum of the records' step times, so that every rank and every replay counts alike.
    """

    def __init__(self, settings: BudgetSettings) -> None:
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        self._time_s = 0.0
        self._treated_at: list[float] = []
        self._total = 0
        self.rollbacks = 0

    def observe(self, record: StepRecord) -> None:
        if 0.0 < record.step_time_s < math.inf:
            self._time_s += record.step_time_s
        if self._treated_at:
            hour_ago = self._time_s - 3600.0
            self._treated_at = [t for t in self._treated_at if t > hour_ago]

    @property
    def is_spent(self) -> bool:
        """No further treatment is allowed."""
        return (
            self._total >= self.settings.per_run or len(self._treated_at) >= self.settings.per_hour
        )

    @property
    def total(self) -> int:
        """Treatments so far."""
        return self._total

    @property
    def has_rollbacks(self) -> bool:
        return self.rollbacks < self.settings.max_rollbacks

    def spend(self) -> None:
        self._total += 1
        self._treated_at.append(self._time_s)

    def state_dict(self) -> dict[str, Any]:
        return {
            "time_s": self._time_s,
            "treated_at": list(self._treated_at),
            "total": self._total,
            "rollbacks": self.rollbacks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._time_s = float(state["time_s"])
        self._treated_at = list(state["treated_at"])
        self._total = int(state["total"])
        self.rollbacks = int(state["rollbacks"])


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
            self._treatments.start(
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
