"""A leap of the loss while next to nothing is known of the run."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from supervisor.detectors.statistics.named_state import NamedState

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
"""Rows after which it must still lie there: batches of very different length come back sooner, the
bump of a warm-up is on its way down, and other rows show that the first was low by chance."""


class FirstRows(NamedState):
    """Watches rows 1 to 20 of a run, counted from 0.

    Attributes:
        warns: the loss has leapt, and is not half way back yet.
        found: three rows later it still lies a leap above, by what is known of its noise by then.
        is_over: nothing more can be said.
    """

    _state = (
        *("_recent", "_lowest", "_highest", "_changes", "_own_change", "_last", "_since", "_row"),
        "found",
    )

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._lowest, self._highest = math.inf, -math.inf
        self._changes = self._own_change = self._last = 0.0
        self._since: list[float] = []
        self._row = -1
        self.found = False

    @property
    def warns(self) -> bool:
        return bool(self._since)

    @property
    def is_over(self) -> bool:
        return self._row > LAST_ROW + WAIT

    def stop(self) -> None:
        """What comes next is known from elsewhere."""
        self._row, self._since, self.found = LAST_ROW + WAIT + 1, [], False

    def update(self, loss: float) -> None:
        """Takes in a finite loss."""
        self._row += 1
        if self.is_over:
            self.stop()
            return
        change = abs(math.log(loss) - math.log(self._last)) if min(loss, self._last) > 0 else 0.0
        self._last = loss
        if not self._since and self._row <= LAST_ROW and self._is_leap(loss):
            self._since, self._own_change = [loss], change
            return
        self._changes += change
        if self._since:
            self._follow(loss)
        if not self._since:
            self._lowest, self._highest = min(self._lowest, loss), max(self._highest, loss)
            self._recent.append(loss)

    def _follow(self, loss: float) -> None:
        before, leap = median(self._recent), self._since[0]
        half = math.sqrt(leap) * math.sqrt(before) if self._lowest > 0 else 0.5 * (leap + before)
        if loss <= half:
            self._changes += self._own_change
            self._since, self.found = [], False
            return
        self._since.append(loss)
        if len(self._since) > WAIT:
            self.found = self.found or self._is_leap(median(self._since))

    def _is_leap(self, loss: float) -> bool:
        recent = self._recent
        if not recent:
            return False
        if self._lowest > 0:
            change = CHANGES * self._changes / max(1, self._row - 1)
            return loss >= max(LEAP, math.exp(min(change, 50.0))) * median(recent)
        spread = self._highest - self._lowest
        return len(recent) >= FEWEST and loss - self._highest >= LEAP * spread > 0.0

    def reason(self, loss: float) -> str:
        known = self._row - len(self._since) + 1
        rows = "the first row" if known == 1 else f"the first {known} rows"
        if self._lowest > 0:
            above = f"{loss / median(self._recent):.3g} times"
        else:
            above = f"{(loss - self._highest) / (self._highest - self._lowest):.3g} spreads above"
        return f"the loss of {loss:.6g} is {above} {rows}; no more is known yet"
