"""Where a signal is against where it used to be, in the log domain."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from supervisor.detectors.statistics.reference import Reference
from supervisor.detectors.statistics.robust_window import RobustWindow

TINY = 1e-12


class Trajectory:
    """Follows one signal and says how far the newest value lies off its course.

    Losses fall and noise grows by ratios, so a positive signal is judged by its logarithm. When a
    negative value comes, the signal is judged as it is for the rest of the run, and rises count in
    units of its own spread.

    Attributes:
        z: scales above the median of the reference, which ends a few steps ago.
        rise: log-ratio to that median; in the linear domain the rise in spreads / 10.
        above_tail: above the 99th percentile of the last `tail` values, outliers included.
        leap: rise against the previous value.
    """

    def __init__(self, *, size: int = 50, lag: int = 3, floor: float = 0.02, tail: int = 500):
        self.reference = Reference(size=size, lag=lag, floor=floor)
        self.tail = RobustWindow(tail)
        self._waiting: deque[float] = deque()
        self._linear = False
        self._previous = math.nan
        self.z = self.rise = self.leap = 0.0
        self.above_tail = False

    @property
    def is_ready(self) -> bool:
        return len(self.reference) >= 10

    def update(self, value: float) -> None:
        """Judges the finite `value`, then takes it in."""
        if value < 0 and not self._linear:
            self._turn_linear()
        inner = value if self._linear else math.log(max(value, TINY))
        self._judge(inner)
        self.reference.push(inner)
        self._waiting.append(inner)
        if len(self._waiting) > 20:
            self.tail.add(self._waiting.popleft())
        self._previous = inner

    def calm(self) -> None:
        """No value was seen at this step."""
        self.z = self.rise = self.leap = 0.0
        self.above_tail = False

    def _judge(self, inner: float) -> None:
        if not self.is_ready:
            self.calm()
            return
        unit = 10.0 * self.reference.scale if self._linear else 1.0
        self.z = self.reference.z(inner)
        self.rise = (inner - self.reference.median) / unit
        self.leap = (inner - self._previous) / unit
        line = self.reference.window.highest
        if len(self.tail):
            line = max(line, self.tail.quantile(0.99))
        self.above_tail = inner > line

    def _turn_linear(self) -> None:
        self._linear = True
        self.reference.clear()
        self.tail.clear()
        self._waiting.clear()
        self._previous = math.nan

    def state_dict(self) -> dict[str, Any]:
        return {
            "reference": self.reference.state_dict(),
            "tail": self.tail.state_dict(),
            "waiting": list(self._waiting),
            "linear": self._linear,
            "previous": self._previous,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.reference.load_state_dict(state["reference"])
        self.tail.load_state_dict(state["tail"])
        self._waiting = deque(state["waiting"])
        self._linear = bool(state["linear"])
        self._previous = float(state["previous"])
