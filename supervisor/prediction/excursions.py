"""A loss that leaves its course again and again and comes back: a training at its limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONG = 3
"""Steps in alarm that make an excursion: a single bad batch is over after one or two."""

HEALED = 20
"""Steps without an alarm after which it is over."""

MEMORY = 3000
"""Steps within which a second excursion belongs to a pattern: in the public logs for tuning whose
loss comes back before it is lost for good, the excursions lie 200 to 2,300 steps apart."""

ENOUGH = 2


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

    def update(self, *, in_alarm: bool) -> None:
        """Takes in whether the loss is off its course at this step."""
        self._tick += 1
        self.found = False
        if in_alarm:
            self._alarms += 1
            self._calm = 0
            return
        self._calm += 1
        if not self._alarms or self._calm < HEALED:
            return
        if self._alarms >= LONG:
            recent = [tick for tick in self._healed if self._tick - tick <= MEMORY]
            self._healed = [*recent, self._tick]
            self.found = len(self._healed) >= ENOUGH
            if self.found:
                self._healed = []
        self._alarms = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "alarms": self._alarms,
            "calm": self._calm,
            "healed": list(self._healed),
            "tick": self._tick,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.found = bool(state["found"])
        self._alarms = int(state["alarms"])
        self._calm = int(state["calm"])
        self._healed = list(state["healed"])
        self._tick = int(state["tick"])
