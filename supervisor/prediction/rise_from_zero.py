"""A loss that was learned by heart, or is mostly zero, and comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

RECENT = 50
MANY = 10.0
"""Times above all recent losses."""

ROWS = 3


class RiseFromZero:
    """Judges rises where most losses count as zero (`RunScale`), of which ratios say nothing.

    Attributes:
        found: three rows in a row lie above zero and far above the last 50 before them.
        recent: these.
    """

    def __init__(self) -> None:
        self._high = 0
        self.recent: deque[float] = deque(maxlen=RECENT)

    @property
    def found(self) -> bool:
        return self._high >= ROWS

    def update(self, loss: float, *, floor: float) -> None:
        """Takes in a finite loss; sizes up to `floor` count as zero."""
        recent = self.recent
        was_zero = self._high or (len(recent) == RECENT and abs(recent[-1]) <= floor)
        if was_zero and loss > max(floor, MANY * max(map(abs, recent))):
            self._high += 1
        else:
            self._high = 0
            recent.append(loss)

    def reset(self) -> None:
        self._high = 0
        self.recent.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"high": self._high, "recent": list(self.recent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._high = int(state["high"])
        self.recent = deque(state["recent"], maxlen=RECENT)
