"""How often a look may be taken, so that all of them together stay within a share of the time."""

from __future__ import annotations

import math

FIRST_STEP = 20
"""No look before it: compilation, caching allocators and lazy layers are done by then."""


class Pace:
    """Chooses the next step to look at from what looks cost and how long steps take.

    A look of `c` seconds is followed by steps that take ``c / share`` seconds together before the
    next one, so a run spends at most `share` of its time on looks, however their price changes.

    Args:
        share: of the run's time.
        every_steps: look at every so many steps instead, whatever it costs.

    Attributes:
        next_step: number of the next step to look at.
        looks: how many there were.
        spent_s: seconds that they took.
    """

    def __init__(self, share: float, every_steps: int | None = None) -> None:
        self.next_step: float = FIRST_STEP if share > 0 or every_steps else math.inf
        self.looks = 0
        self.spent_s = 0.0
        self._share = share
        self._every = every_steps
        self._last_step = -1
        self._last_time = math.nan

    def took(self, step: int, cost_s: float, now: float) -> None:
        """Takes note of the look at `step`, and chooses the next step.

        Args:
            step: that was looked at.
            cost_s: seconds that the training waited for it.
            now: of a clock that is never set back, in seconds.
        """
        self.looks += 1
        self.spent_s += cost_s
        steps = step - self._last_step
        step_s = (now - self._last_time) / steps if self._last_step >= 0 and steps > 0 else math.nan
        self._last_step, self._last_time = step, now
        if self._every:
            self.next_step = step + self._every
        elif step_s > 0:
            self.next_step = step + max(1, math.ceil(cost_s / (self._share * step_s)))
        else:  # the first look: how long a step takes is not known yet
            self.next_step = step + 10
