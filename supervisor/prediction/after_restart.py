"""The first losses after a restart, against the level before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.detectors.statistics.reference import NORMAL_Q90
from supervisor.detectors.statistics.robust_window import RobustWindow

BEFORE = 15
"""Losses that make the level before: of a falling loss that is higher, never lower."""

LOOK = 10
"""Losses after the restart that are compared."""

FEWEST, FEWEST_BEFORE = 3, 10
RISE = math.log(1.15)
ERRORS = 5.0
"""Standard errors of the median of the losses since the restart."""

FLAT = 0.02
"""The smallest spread, as of the predictor's other logarithms."""


class AfterRestart(NamedState):
    """Tells a restart that did not bring back what was there: weights, optimizer, order of data.

    Only positive losses are judged, by their logarithms.

    Attributes:
        found: the losses since the restart lie above that level.
    """

    _state = ("found", "_where", "_level", "_spread", "_since")

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

    def start(self, step: int, checkpoint: str, losses: Sequence[float]) -> None:
        """The run goes on from `step`, after `losses`."""
        self.reset()
        before = losses[-BEFORE:]
        if len(before) < FEWEST_BEFORE or min(before) <= 0:
            return
        window = RobustWindow(BEFORE)
        for loss in before:
            window.add(math.log(loss))
        self._level = window.median
        above = (window.quantile(0.9) - window.median) / NORMAL_Q90
        self._spread = max(FLAT, window.sigma, above)
        self._where = f"the resume at step {step}"
        if checkpoint:
            self._where = f"the resume from checkpoint {checkpoint} at step {step}"

    def update(self, loss: float) -> None:
        """Takes in a finite loss while `is_on`."""
        since = self._since
        if len(since) == LOOK or loss <= 0:
            self.reset()
            return
        since.append(math.log(loss))
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
