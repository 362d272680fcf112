"""Whether the weights were to blame for a rise of the loss at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.detectors.statistics.robust_window import LEAP
from supervisor.records import StepRecord

LOOK_BACK = 10
"""Steps up to the restored one whose losses say what those weights gave at their time: few, so that
the weights are nearly the same, and several, because their highest stands for the noise."""

LOOK = 2
"""Steps after the rollback. One may have a bad batch; by the second the guard would go back again,
so the answer is needed then."""

RISE = 1.0 + LEAP
"""Both losses must lie a leap above the highest of the `LOOK_BACK`, and in the upper half of the
rise (by ratio): weights that a rollback has cured give a loss near their old one at once."""


class RollbackEvaluation:
    """A controlled comparison after each rollback: the loss of the same weights then and now.

    If it was low then and is as high now as the one that raised the alarm, the batches or the
    objective have changed, and no treatment of weights or rates brings the old level back.

    Attributes:
        is_on: the steps after a rollback are being looked at.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._to_step = -1
        self._then = math.nan
        self._line = math.nan
        self._seen = 0

    def start(self, to_step: int, then: Sequence[float], alarming: float) -> None:
        """The weights of `to_step` were put back.

        Args:
            then: the losses of the steps up to `to_step`, as far as they are known.
            alarming: the last loss before the rollback.
        """
        known = len(then) > LOOK_BACK // 2 and all(map(math.isfinite, then))
        self.is_on = known and math.isfinite(alarming) and alarming > max(then)
        if self.is_on:
            self._to_step, self._seen = to_step, 0
            self._then = max(then)
            self._line = self._upper_half(min(then), alarming)

    def _upper_half(self, lowest: float, alarming: float) -> float:
        """Where the upper half of the rise begins: by ratio, or where losses may be negative by
        difference, beyond a leap from the size that they had."""
        then = self._then
        if lowest > 0.0:
            return max(RISE * then, math.sqrt(then * alarming))
        return max(then + LEAP * max(abs(then), abs(lowest)), 0.5 * (then + alarming))

    def update(self, record: StepRecord) -> str:
        """Takes in a step while `is_on`; returns the sentence of the evaluation, or nothing yet."""
        self._seen += 1
        self.is_on = record.loss_seen and self._line < record.loss < math.inf
        if not self.is_on or self._seen < LOOK:
            return ""
        self.is_on = False
        return (
            f"the weights of step {self._to_step} have a loss of {record.loss:.6g} now and had "
            f"{self._then:.6g} at most: the data or the objective has changed, not the weights; "
            "the new level is adopted"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "is_on": self.is_on,
            "to_step": self._to_step,
            "then": self._then,
            "line": self._line,
            "seen": self._seen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.is_on = bool(state["is_on"])
        self._to_step = int(state["to_step"])
        self._then = float(state["then"])
        self._line = float(state["line"])
        self._seen = int(state["seen"])
