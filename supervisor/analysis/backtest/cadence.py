"""At which steps the rows of a log stand, and where that changes."""

from __future__ import annotations

import math
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


class StepCount:
    """The step of each row, counted on where a log begins its count anew in every epoch.

    Attributes:
        is_new_run: the epoch went back: several trainings wrote to one log.
    """

    def __init__(self) -> None:
        self.is_new_run = False
        self._offset = 0
        self._distance = 1
        self._step: int | None = None
        self._epoch = math.nan

    def update(self, step: int, epoch: float) -> int:
        """Takes in what a row says of itself; `epoch` is NaN where it says nothing."""
        step_before, epoch_before = self._step, self._epoch
        self.is_new_run = epoch < epoch_before
        if step_before is not None:
            if step + self._offset <= step_before and epoch > epoch_before:
                self._offset = step_before + self._distance - step
            self._distance = max(1, step + self._offset - step_before)
        self._step = step + self._offset
        self._epoch = epoch_before if math.isnan(epoch) else epoch
        return self._step
