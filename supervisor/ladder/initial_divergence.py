"""A training that leaves its untrained level upwards with its first updates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from supervisor.detectors.statistics.robust_window import is_leap

LAST_STEP = 60
"""What goes wrong later has a course that it leaves, and is judged against that."""

BLOWN_UP_LOOK = 10
BLOWN_UP = 5.0
"""`BLOWN_UP_LOOK` losses in a row, that many times the first loss of the run, and none back at its
level since the first of them: where tasks of different sizes take turns, only some are, and where
batches are single samples, losses like the first come again. The first update of a run
whose rate was 40 to 60 times too high made it 2 to 700 times, in five small trainings. Of the
healthy runs of the corpus only adversarial games start so, or as below, and their weights speak for
them (`BackToStart.precondition`)."""

LOOK = 5
ENOUGH_LEAPS = 2
STUCK_LOOK = 20
STUCK = 0.9
"""Or `ENOUGH_LEAPS` of the first `LOOK` losses leapt above the first and the later ones, and
the median of losses 20 to 40 is no better than `STUCK` times the first: nothing has been
learned since. One high loss says nothing in small batches; nor does a leap where the quartiles of
the later losses lie as far apart. A run without any leap has started well after 20 steps."""


class InitialDivergence:
    """Watches the first 60 losses of a run, all of them positive.

    Attributes:
        found: whether the start has failed, for the one step at which this became known.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.found = False
        self._first = math.nan
        self._losses: list[float] = []
        self._leapt = False
        self._blown_up = 0
        self._came_back = False

    def update(self, step: int, loss: float) -> None:
        """Takes in the loss of a step of the run; what is not finite is the guard's business."""
        self.found = False
        if step >= LAST_STEP or not math.isfinite(loss):
            return
        if math.isnan(self._first):
            self._first = loss if loss > 0 else -1.0
            return
        if self._first < 0:
            return
        if loss <= 0:  # ratios mean nothing
            self._first = -1.0
            return
        if len(self._losses) >= STUCK_LOOK and not self._leapt:
            self._first = -1.0  # this start was a good one
            return
        self._losses.append(loss)
        if len(self._losses) <= LOOK:
            self._leapt = self._leapt or is_leap(loss, self._first)
        if loss > BLOWN_UP * self._first:
            self._blown_up += 1
        elif self._blown_up:
            self._came_back = True
        self.found = self._has_failed()
        if self.found:
            self._begin_anew()

    def forget_levels(self) -> None:
        """An announced change: the first losses are no yardstick any more."""
        if not math.isnan(self._first):
            self._first = -1.0

    def forgive(self) -> None:
        """The untrained weights were put back."""
        self._begin_anew()
        self._leapt = False

    def _begin_anew(self) -> None:
        self._losses.clear()
        self._blown_up = 0
        self._came_back = False

    def _has_failed(self) -> bool:
        losses, first = self._losses, self._first
        if self._blown_up >= BLOWN_UP_LOOK and not self._came_back:
            return True
        if not self._leapt or len(losses) < 2 * STUCK_LOOK:
            return False
        low, later, high = statistics.quantiles(losses[-STUCK_LOOK:], n=4)
        if is_leap(high, low):
            return False
        leaps = sum(is_leap(loss, max(first, high)) for loss in losses[:LOOK])
        return later > STUCK * first and leaps >= ENOUGH_LEAPS

    def state_dict(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "first": self._first,
            "losses": list(self._losses),
            "leapt": self._leapt,
            "blown_up": self._blown_up,
            "came_back": self._came_back,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.found = bool(state["found"])
        self._first = float(state["first"])
        self._losses = list(state["losses"])
        self._leapt = bool(state["leapt"])
        self._blown_up = int(state.get("blown_up", 0))
        self._came_back = bool(state.get("came_back", False))
