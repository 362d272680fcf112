"""A learning rate that leaps beyond every rate that the run has had, and does harm."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from supervisor.detectors.statistics.robust_window import RobustWindow, is_leap
from supervisor.records import StepRecord

DOUBLED = 1.0
"""A rate leaps when it more than doubles: a warm-up grows by less from step to step once ten steps
of it are over, and a warm restart returns to a rate that was there before."""

FEWEST_STEPS = 10
MEMORY_STEPS = 60
"""A new rate under which so many steps went well is one that the run has had."""

LOOK = 4
ENOUGH = 2
"""So many of the last `LOOK` losses off their course: by noise alone once in 400 leaps."""

RISE = 0.15


class LearningRateSpike:
    """Follows the rate, and whether the loss suffers right behind a leap of it.

    A loss suffers that is above all of the accepted losses before the leap, and 15 % above their
    median.

    Attributes:
        step: of the leap; -1 while none is new.
        before: the rate right before it; NaN while none is new.
        harms: whether the loss has left its course since.
    """

    def __init__(self) -> None:
        self._highest = -math.inf
        self._previous = math.nan
        self._seen = 0
        self._forget()

    def _forget(self) -> None:
        self.step = -1
        self.before = math.nan
        self.harms = False
        self._line = math.inf
        self._above: deque[int] = deque(maxlen=LOOK)

    def update(self, record: StepRecord, accepted: RobustWindow) -> None:
        """Takes in a step; `accepted` holds the losses of the steps before it."""
        rate = record.lr
        self._seen += 1
        if self.step >= 0:
            self._follow(record)
        elif rate > self._highest and self._has_leapt(rate):
            self._begin(record, accepted)
        if self.step < 0 and rate > self._highest:
            self._highest = rate
        self._previous = rate

    def forget_levels(self, rate: float) -> None:
        """An announced change, under `rate`: it is one that the run has had."""
        self._forget()
        if rate > self._highest:
            self._highest = rate

    def _has_leapt(self, rate: float) -> bool:
        is_known = self._seen > FEWEST_STEPS and self._previous > 0
        return is_known and is_leap(rate, self._highest, DOUBLED)

    def _begin(self, record: StepRecord, accepted: RobustWindow) -> None:
        if len(accepted):
            median = accepted.median
            self.step, self.before = record.step, self._previous
            self._line = max(accepted.highest, median + RISE * abs(median))

    def _follow(self, record: StepRecord) -> None:
        self._above.append(int(record.loss_seen and not record.loss <= self._line))
        self.harms = sum(self._above) >= ENOUGH
        since = record.step - self.step
        over = record.lr <= self._highest and since > LOOK and not any(self._above)
        if over or since > MEMORY_STEPS or since < 0:
            self._forget()

    def reason(self) -> str:
        return (
            f"the learning rate leapt from {self.before:.4g} at step {self.step}, and the loss "
            "has left its course since"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "highest": self._highest,
            "previous": self._previous,
            "seen": self._seen,
            "step": self.step,
            "before": self.before,
            "harms": self.harms,
            "line": self._line,
            "above": list(self._above),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._highest = float(state["highest"])
        self._previous = float(state["previous"])
        self._seen = int(state["seen"])
        self.step = int(state["step"])
        self.before = float(state["before"])
        self.harms = bool(state["harms"])
        self._line = float(state["line"])
        self._above = deque(state["above"], maxlen=LOOK)
