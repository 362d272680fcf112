"""A leap of the loss while next to nothing is known of the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

LAST_ROW = 20
"""Later rows have a course of their own (`Trajectory` knows it from the tenth row on)."""

LEAP = 2.5
"""Times what is known, or spreads where ratios mean nothing."""

CHANGES = 5.0
"""And that many times the mean change from row to row, as a ratio: single samples and targets with
heavy tails leap at every second row, and what a fast fall has left doubles from row to row."""

RECENT = 5
"""Rows whose median a leap is measured against: a young loss falls fast."""

FEWEST = 4
"""Rows whose spread is a unit, for losses of which ratios mean nothing."""

WAIT = 3
"""Rows for which it must stay: batches of very different length come back sooner, and the bump of
a warm-up is on its way down by then."""


class FirstRows:
    """Watches rows 1 to 20 of a run, counted from 0.

    Attributes:
        warns: the loss has leapt, and is not half way back yet.
        found: it has stayed there for three rows more.
        is_over: nothing more can be said.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._lowest, self._highest = math.inf, -math.inf
        self._changes, self._last = 0.0, 0.0
        self._high = -1
        self._line = math.inf
        self._row = -1
        self._times = 0.0
        self._known = 0

    @property
    def warns(self) -> bool:
        return self._high >= 0

    @property
    def found(self) -> bool:
        return self._high >= WAIT

    @property
    def is_over(self) -> bool:
        return self._row > LAST_ROW + WAIT

    def end(self) -> None:
        """What comes next is known from elsewhere."""
        self._row, self._high = LAST_ROW + WAIT + 1, -1

    def update(self, loss: float) -> None:
        """Takes in a finite loss."""
        self._row += 1
        if self.is_over:
            self._high = -1
        elif self.warns:
            self._high = self._high + 1 if loss > self._line else -1
        elif self._row <= LAST_ROW and self._leaps(loss):
            self._known, self._high = self._row, 0
        if min(loss, self._last) > 0:
            self._changes += abs(math.log(loss / self._last))
        self._last = loss
        if not self.warns:
            self._lowest, self._highest = min(self._lowest, loss), max(self._highest, loss)
            self._recent.append(loss)

    def _leaps(self, loss: float) -> bool:
        recent = self._recent
        if not recent:
            return False
        before = median(recent)
        if self._lowest > 0:
            self._times = max(0.0, loss / before)
            self._line = math.sqrt(self._times) * before
            change = CHANGES * self._changes / max(1, self._row - 1)
            return self._times >= max(LEAP, math.exp(min(change, 50.0)))
        spread = self._highest - self._lowest
        if len(recent) < FEWEST or not spread:
            return False
        self._times = (loss - self._highest) / spread
        self._line = 0.5 * (loss + before)
        return self._times >= LEAP

    def reason(self, loss: float) -> str:
        rows = "the first row" if self._known == 1 else f"the first {self._known} rows"
        unit = "times" if self._lowest > 0 else "spreads above"
        return f"the loss of {loss:.6g} is {self._times:.3g} {unit} {rows}; no more is known yet"

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": list(self._recent),
            "changes": self._changes,
            "last": self._last,
            "lowest": self._lowest,
            "highest": self._highest,
            "high": self._high,
            "line": self._line,
            "row": self._row,
            "times": self._times,
            "known": self._known,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent = deque(state["recent"], maxlen=RECENT)
        self._lowest, self._highest = float(state["lowest"]), float(state["highest"])
        self._changes, self._last = float(state["changes"]), float(state["last"])
        self._line = float(state["line"])
        self._high, self._row = int(state["high"]), int(state["row"])
        self._times, self._known = float(state["times"]), int(state["known"])
