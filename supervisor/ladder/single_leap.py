"""Whether ruin came in a single leap of the loss that the weights have not made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.detectors.statistics.leap import is_leap
from supervisor.detectors.statistics.other_data import SHIFT
from supervisor.records import StepRecord

MOVED = "weights_moved"
"""Observed where the loss lies a leap above all of the last steps: how far the weights have moved
since the newest snapshot, as a multiple of how far between any two before
(`supervisor.worker.live.weight_moves`)."""

USUAL = 2.0
"""The most that counts as usual. Weights that are damaged have moved hundreds of times as far."""

OVER = 20
"""Steps without ruin behind which the next ruin is another one."""


class SingleLeap:
    """Follows the loss while it is ruined.

    Weights that go wrong move far, and what harms them grows. Labels that mean something else, and
    a term of the loss that counts more, raise it at once, to a level that training comes down from.

    Attributes:
        is_on: the present ruin came in a leap before which the weights moved as always, with inputs
            as always, and no loss since lies a leap above its first one.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._first = math.nan
        self._since = OVER

    def update(self, record: StepRecord, *, is_ruin: bool) -> None:
        """Takes in a step, and whether it is beyond all that the untrained weights gave."""
        self._since += 1
        if is_ruin:
            if self._since > OVER:
                seen = record.observed
                self.is_on = seen.get(MOVED, math.inf) <= USUAL and seen.get(SHIFT, 0.0) < 1.0
                self._first = record.loss
            self._since = 0
        is_finite = not (record.has_nonfinite_loss or record.has_nonfinite_grad)
        if self._since > OVER or is_leap(record.loss, self._first) or not is_finite:
            self.is_on = False

    def state_dict(self) -> dict[str, Any]:
        first = self._first if math.isfinite(self._first) else None
        return {"is_on": self.is_on, "first": first, "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.is_on, self._since = bool(state["is_on"]), int(state["since"])
        self._first = math.nan if state["first"] is None else float(state["first"])
