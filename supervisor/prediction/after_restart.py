"""The first losses after a restart, against the level before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from supervisor.prediction.trajectory import MIN_WINDOW, Trajectory

LOOK = 10
"""Losses after the restart that are compared."""

FEWEST = 3
RISE = math.log(1.15)
ERRORS = 5.0
"""Standard errors of the median of the losses since the restart."""


class AfterRestart:
    """Tells a restart that did not bring back what was there: weights, optimizer, order of data.

    The level before is the median of the last 50 losses or fewer before the step gone back to: of a
    falling loss that is higher, never lower. Losses that can be negative are not judged.

    Attributes:
        found: the losses since the restart lie above that level.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.found = False
        self._where = ""
        self._level = self._spread = 0.0
        self._since: list[float] = []

    @property
    def is_on(self) -> bool:
        return bool(self._where)

    def begin(self, step: int, checkpoint: str, loss: Trajectory) -> None:
        """The run goes on from `step`, with the level that `loss` has there."""
        self.reset()
        if len(loss.reference) >= MIN_WINDOW and not loss.is_linear:
            self._level, self._spread = loss.reference.median, loss.reference.scale
            self._where = f"the resume at step {step}"
            if checkpoint:
                self._where = f"the resume from checkpoint {checkpoint} at step {step}"

    def update(self, loss: Trajectory) -> None:
        """Looks at the newest value of `loss` while `is_on`."""
        since = self._since
        since.append(loss.newest)
        if len(since) > LOOK or loss.is_linear:
            self.reset()
            return
        rise = median(since) - self._level
        errors = self._spread * math.sqrt(0.5 * math.pi / len(since))
        self.found = len(since) >= FEWEST and rise > max(RISE, ERRORS * errors)

    @property
    def reason(self) -> str:
        now, before = math.exp(median(self._since)), math.exp(self._level)
        return (
            f"{self._where} did not bring back what was there: the loss is {now:.6g}, and was "
            f"{before:.6g}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "where": self._where,
            "level": self._level,
            "spread": self._spread,
            "since": list(self._since),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.found, self._where = bool(state["found"]), str(state["where"])
        self._level, self._spread = float(state["level"]), float(state["spread"])
        self._since = list(state["since"])
