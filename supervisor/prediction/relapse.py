"""A loss that was learned by heart, or is mostly zero, and comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.detectors.statistics.run_scale import RunScale

RECENT = 50
MANY = 10.0
"""Times above the spread that the run had while it was learning, and above its own recent one."""

ROWS = 3
MOSTLY = 0.5
"""Share of the last values that count as zero: of others ratios mean something (`Trajectory`)."""


class Relapse:
    """Judges rises from a level that counts as zero (`RunScale.floor`), where ratios say nothing.

    Attributes:
        found: the loss lies that far above for three rows.
        zeros: share of the last values that count as zero, about.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.found = False
        self.zeros = 0.0
        self._high = 0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def update(self, loss: float, scale: RunScale) -> None:
        """Takes in a finite loss that is not negative."""
        is_zero = loss <= scale.floor
        if not is_zero and self.zeros > MOSTLY and self._is_far(loss, scale):
            self._high += 1
            self.found = self._high >= ROWS
            return  # neither usual nor zero
        self.zeros += (is_zero - self.zeros) / RECENT
        self._high, self.found = 0, False
        self._recent.append(loss)

    def _is_far(self, loss: float, scale: RunScale) -> bool:
        window = RobustWindow(RECENT)
        for value in self._recent:
            window.add(value)
        own: float = max(window.sigma, (window.quantile(0.9) - window.median) / 1.2816)
        line: float = max(MANY * scale.noise, MANY * own, scale.floor)
        return loss - window.median > line

    def state_dict(self) -> dict[str, Any]:
        return {"zeros": self.zeros, "high": self._high, "recent": list(self._recent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.zeros, self._high = float(state["zeros"]), int(state["high"])
        self._recent = deque(state["recent"], maxlen=RECENT)
        self.found = self._high >= ROWS
