"""How often a run may be treated before something stronger must be done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.records import StepRecord
from supervisor.settings import BudgetSettings


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

    @property
    def is_spent(self) -> bool:
        """No further treatment is allowed."""
        hour_ago = self._time_s - 3600.0
        self._treated_at = [t for t in self._treated_at if t > hour_ago]
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
