"""A learning rate that a script raises step by step to see from where on training diverges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FEWEST_STEPS = 8
GROWTH = 30.0
"""Between its first rate and the present one, by the same factor at each step: warm-ups grow along
a line or a curve, and those that do not grow by less."""

SAME = 0.02
"""Part of a factor's growth by which factors may differ: rates are rounded."""

LOW = 0.1
"""Of the highest rate so far: what begins to grow there, or with the first step, may be a test. A
rate that begins to creep up from its usual size is trouble."""

LEAST = 1e-4
"""A smaller growth a step is none that rounding could tell."""


class RateTest:
    """Recognises a learning rate finder (a range test): the rate grows by one factor at each step.

    Such a run is meant to diverge, and puts its weights back afterwards. It begins with the first
    step, or far below the rate that was usual. A rate that grows along a
    line is not recognised: a warm-up does the same.

    Attributes:
        is_on: the last step belongs to a test.
        reason: said at the first such step, empty at all others.
    """

    def __init__(self) -> None:
        self._first = self._previous = self._factor = math.nan
        self._highest = 0.0
        self._steps = 0
        self.is_on = False
        self.reason = ""

    def update(self, rate: float) -> bool:
        """Takes in a step's rate; returns whether a test is on, or has ended right before it."""
        before, self._previous = self._previous, rate
        highest = self._highest
        if before > highest:
            self._highest = before
        if not rate > before > 0:
            self._steps = 0
        else:
            self._follow(before, rate / before, is_low=not highest or before <= LOW * highest)
        was_on, self.is_on = self.is_on, self._steps >= FEWEST_STEPS and rate > GROWTH * self._first
        self.reason = ""
        if self.is_on and not was_on:
            self.reason = (
                f"the learning rate has grown from {self._first:.3g} to {rate:.3g}, by the factor "
                f"{self._factor:.4g} at each step: nothing is treated while it goes on"
            )
        return was_on or self.is_on

    def _follow(self, before: float, factor: float, *, is_low: bool) -> None:
        growth = factor - 1.0
        if self._steps and abs(factor - self._factor) <= SAME * growth:
            self._steps += 1
            return
        self._first, self._factor = before, factor
        self._steps = int(growth > LEAST and is_low)

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": self._first,
            "previous": self._previous,
            "highest": self._highest,
            "factor": self._factor,
            "steps": self._steps,
            "is_on": self.is_on,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._previous = float(state["first"]), float(state["previous"])
        self._factor, self._highest = float(state["factor"]), float(state.get("highest", 0.0))
        self._steps, self.is_on = int(state["steps"]), bool(state["is_on"])
