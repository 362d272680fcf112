"""Whether the weights were to blame for a rise of the loss at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.records import StepRecord

LOOK_BACK = 10
"""Steps up to the restored one whose losses say what those weights gave at their time: few, so that
the weights are nearly the same, and several, because their highest stands for the noise."""

LOOK = 2
"""Steps after the rollback. One may have a bad batch; by the second the guard would go back again,
so the answer is needed then."""

RISE = 1.5
"""Both must lie that far above the highest of the `LOOK_BACK` losses, and in the upper half of the
rise (by ratio). Weights that a rollback has cured give a loss near their old one at once. Chosen by
argument; 229 of 234 faults of benchmarks/survival.py were survived with it."""


class RollbackEvaluation:
    """A controlled comparison after each rollback: the same weights then and now.

    Weights from before the onset are in place again. Is their loss on the batches of today as high
    as the one that raised the alarm, and was it low when they were made, then the batches or the
    objective have changed (the weight of a KL term that is being raised, another stage of a
    curriculum, another data set): no treatment of weights or rates can bring the old level back,
    and each further one does harm. Was it high at their time already, the rollback did not go far
    enough, and nothing is said.

    Were the newer weights' last loss and those of the restored ones today within `RISE` of each
    other, then the rollback has won nothing either, and what it threw away is worth more: the
    training between the two. Above that the newer weights may be sick as well, and stay away.

    Attributes:
        is_on: the steps after a rollback are being looked at.
        newer_are_as_good: of the last evaluation: the rollback itself is to be taken back.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.newer_are_as_good = False
        self._to_step = -1
        self._alarming = math.nan
        self._highest = -math.inf
        self._then = math.nan
        self._line = math.nan
        self._seen = 0

    def begin(self, to_step: int, then: Sequence[float], alarming: float) -> None:
        """The weights of `to_step` were put back.

        Args:
            then: the losses of the steps up to `to_step`, as far as they are known.
            alarming: the last loss before the rollback.
        """
        known = len(then) > LOOK_BACK // 2 and all(0.0 < loss < math.inf for loss in then)
        self.is_on = known and 0.0 < alarming < math.inf
        if self.is_on:
            self._to_step, self._seen = to_step, 0
            self._alarming, self._highest = alarming, -math.inf
            self._then = max(then)
            self._line = max(RISE * self._then, math.sqrt(self._then * alarming))

    def update(self, record: StepRecord) -> str:
        """Takes in a step while `is_on`; returns the sentence of the evaluation, or nothing yet."""
        self._seen += 1
        self.is_on = record.loss_seen and self._line < record.loss < math.inf
        self._highest = max(self._highest, record.loss)
        if not self.is_on or self._seen < LOOK:
            return ""
        self.is_on = False
        self.newer_are_as_good = self._alarming <= RISE * self._highest
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
            "alarming": self._alarming,
            "highest": self._highest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.is_on = bool(state["is_on"])
        self._to_step = int(state["to_step"])
        self._then = float(state["then"])
        self._line = float(state["line"])
        self._seen = int(state["seen"])
        self._alarming = float(state.get("alarming", math.nan))
        self._highest = float(state.get("highest", -math.inf))
