"""At which steps the rows of a log stand, and where that changes."""

from __future__ import annotations

from collections import deque

STEADY = 10
"""Equal distances in a row that make a cadence; a log without one has none to change."""

FACTOR = 4
"""A few missing rows, or one more at the end of an epoch, are no other cadence."""


class Cadence:
    """Tells a gap in the step numbers, a return to earlier ones, and another distance of the rows.

    What comes next is another part of a run: resumed elsewhere, or averaged over more steps.
    """

    def __init__(self) -> None:
        self._distances: deque[int] = deque(maxlen=STEADY)
        self._previous: int | None = None

    def breaks_at(self, step: int) -> bool:
        """Takes in the step of the next row; whether the rows before are no yardstick for it."""
        previous, self._previous = self._previous, step
        if previous is None:
            return False
        distance = step - previous
        distances = self._distances
        is_steady = len(distances) == STEADY and min(distances) == max(distances)
        usual = distances[-1] if distances else distance
        distances.append(distance)
        if not is_steady:
            return False
        breaks = not usual / FACTOR <= distance <= usual * FACTOR
        if breaks:
            distances.clear()
        return breaks
