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
"""And that many times the usual change from row to row, as a ratio: single samples and targets with
heavy tails leap at every second row."""

SHARE = 0.2
"""Of the highest row: what a fast fall has left of it may double from row to row."""

RECENT = 5
"""Rows whose median a leap is measured against: a young loss falls fast."""

FEWEST = 4
"""Rows whose spread is a unit, for losses of which ratios mean nothing."""

WAIT = 3
"""Rows for which it must stay: batches of very different length come back sooner, and the bump of
a warm-up is on its way down by then."""

HOLD = 20
"""Rows after which a level that stayed is the usual one."""


class FirstRows:
    """Watches rows 1 to 20 of a run, counted from 0.

    Attributes:
        warns: the loss has leapt, and is not half way back yet.
        found: it has stayed there for three rows more.
        times: how far it leapt: a ratio of positive losses, else in spreads.
        known: rows that were known before it.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changes: list[float] = []
        self._lowest, self._highest = math.inf, -math.inf
        self._high = -1
        self._line = math.inf
        self.row = 0
        self.times = 0.0
        self.known = 0
        self.warns = self.found = False

    def update(self, loss: float) -> None:
        """Takes in a finite loss."""
        if self.row > LAST_ROW and self._high < 0:
            return
        self.row += 1
        if self._high >= 0:
            self._follow(loss)
        elif self.row <= LAST_ROW + 1 and self._leaps(loss):
            self.known, self._high, self.warns = self.row - 1, 0, True
        if not self.warns:
            if self._recent and min(loss, self._lowest) > 0:
                self._changes.append(abs(math.log(loss / self._recent[-1])))
            self._recent.append(loss)
            self._lowest, self._highest = min(self._lowest, loss), max(self._highest, loss)

    def _leaps(self, loss: float) -> bool:
        recent = self._recent
        if not recent:
            return False
        before = median(recent)
        if self._lowest > 0:
            self.times = loss / before
            self._line = math.sqrt(max(0.0, self.times)) * before
            usual = median(self._changes) if self._changes else 0.0
            least = max(LEAP, math.exp(min(CHANGES * usual, 50.0)))
            return self.times >= least and loss > SHARE * self._highest
        spread = self._highest - self._lowest
        if len(recent) < FEWEST or not spread:
            return False
        self.times = (loss - self._highest) / spread
        self._line = 0.5 * (loss + before)
        return self.times >= LEAP

    def _follow(self, loss: float) -> None:
        self._high += 1
        if loss <= self._line and self._lowest > 0:
            self._changes += [math.log(self.times)] * 2  # it is usual here
        if loss <= self._line or self._high > HOLD:
            self._high, self.warns, self.found = -1, False, False
        else:
            self.found = self._high >= WAIT

    def reason(self, loss: float) -> str:
        rows = "the first row" if self.known == 1 else f"the first {self.known} rows"
        unit = "times" if self._lowest > 0 else "spreads above"
        return f"the loss of {loss:.6g} is {self.times:.3g} {unit} {rows}; no more is known yet"

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": list(self._recent),
            "changes": list(self._changes),
            "lowest": self._lowest,
            "highest": self._highest,
            "high": self._high,
            "line": self._line,
            "row": self.row,
            "times": self.times,
            "known": self.known,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent = deque(state["recent"], maxlen=RECENT)
        self._changes = list(state["changes"])
        self._lowest, self._highest = float(state["lowest"]), float(state["highest"])
        self._high, self._line = int(state["high"]), float(state["line"])
        self.row, self.times = int(state["row"]), float(state["times"])
        self.known = int(state["known"])
        self.warns, self.found = self._high >= 0, self._high >= WAIT
