"""A loss that leaves its course again and again and comes back: a training at its limit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

LONG = 3
"""Steps in alarm that make an excursion: a single bad batch is over after one or two."""

HEALED = 20
"""Steps without an alarm after which it is over."""

MEMORY = 3000
"""Steps within which a second excursion belongs to a pattern: in the public logs for tuning whose
loss comes back before it is lost for good, the excursions lie 200 to 2,300 steps apart."""

ENOUGH = 2

MOST = 100
"""Losses of an excursion that are kept."""

CAME_BACK = 0.5
"""Of the rise is left at most: what stays higher, until it counts as usual, has another level (a
weight in the loss has grown, the data are harder)."""


class Excursions:
    """Counts alarms of the loss that lasted and healed.

    Attributes:
        found: the second one within `MEMORY` steps has just healed; said once for each pattern.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.found = False
        self._alarms = 0
        self._calm = 0
        self._healed: list[int] = []
        self._tick = 0
        self._usual: deque[float] = deque(maxlen=HEALED)  # calm losses, in the end those behind
        self._before = math.nan
        self._high: list[float] = []

    def update(self, loss: float, *, in_alarm: bool) -> None:
        """Takes in a step: its loss, and whether that is off its course."""
        self._tick += 1
        self.found = False
        if in_alarm:
            if not self._alarms:
                self._before = median(self._usual) if self._usual else math.nan
            self._alarms += 1
            self._calm = 0
            if math.isfinite(loss) and len(self._high) < MOST:
                self._high.append(loss)
            return
        self._calm += 1
        if math.isfinite(loss):
            self._usual.append(loss)
        if not self._alarms or self._calm < HEALED:
            return
        if self._alarms >= LONG and self._has_come_back():
            recent = [tick for tick in self._healed if self._tick - tick <= MEMORY]
            self._healed = [*recent, self._tick]
            self.found = len(self._healed) >= ENOUGH
            if self.found:
                self._healed = []
        self._alarms = 0
        self._high = []

    def _has_come_back(self) -> bool:
        """Whether the loss is nearer to where it was than to its highest; True where that is not
        known."""
        if not (self._high and self._usual and math.isfinite(self._before)):
            return True
        left = median(self._usual) - self._before
        return left <= CAME_BACK * (median(sorted(self._high)[-LONG:]) - self._before)

    def state_dict(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "alarms": self._alarms,
            "calm": self._calm,
            "healed": list(self._healed),
            "tick": self._tick,
            "usual": list(self._usual),
            "before": self._before if math.isfinite(self._before) else None,
            "high": list(self._high),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.found = bool(state["found"])
        self._alarms = int(state["alarms"])
        self._calm = int(state["calm"])
        self._healed = list(state["healed"])
        self._tick = int(state["tick"])
        self._usual = deque(state.get("usual", ()), maxlen=HEALED)
        before = state.get("before")
        self._before = math.nan if before is None else float(before)
        self._high = list(state.get("high", ()))
