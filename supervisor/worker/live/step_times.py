"""How long the training's steps usually take."""

from __future__ import annotations

import time

from supervisor.worker.core.part import Part

PAUSE = 3.0
"""Steps that take more than so many usual ones (an evaluation came between) count as no more."""

FRESH = 0.3
"""Share of the steps since the last look in what is known of their length: with `PAUSE`, an
evaluation between two looks makes them seem six tenths longer at most."""


class StepTimes(Part):
    """Measured from one boundary that is looked at to the next; the first of the listeners.

    Attributes:
        now: `time.monotonic()` at this boundary.
        usual_s: seconds a step; 0 while not known.
    """

    name = "step times"

    def __init__(self) -> None:
        self.now = 0.0
        self.usual_s = 0.0
        self._last = (0, 0.0)

    def at_boundary(self, step: int) -> None:
        self.now = time.monotonic()
        (last_step, last_time), self._last = self._last, (step, self.now)
        if last_time and step > last_step:
            took, usual = (self.now - last_time) / (step - last_step), self.usual_s
            self.usual_s = usual + FRESH * (min(took, PAUSE * usual) - usual) if usual else took
