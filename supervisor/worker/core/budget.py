"""What our own work may cost: a share of the time, and when the next piece of it is due."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

CHECKPOINTS = 0.75
"""Of `checkpoint.max_overhead`; snapshots, which are more frequent and cost less, have the rest."""
SCHEDSTAT = Path("/proc/thread-self/schedstat")
FIRST_STEP = 20
"""No look before it: compilation, caching allocators and lazy layers are done by then."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the training's time.

    Attributes:
        of_time: 0...1; nothing is allowed at 0.
        allowance_s: seconds beyond it, which a short run may take.
    """

    of_time: float
    allowance_s: float = 0.0

    def allows(self, spent_s: float, elapsed_s: float) -> bool:
        """Whether so much may have been spent by now."""
        return spent_s <= self.allowance_s + self.of_time * elapsed_s

    def from_s(self, spent_s: float) -> float:
        """Seconds of training from which on so much may have been spent."""
        return (spent_s - self.allowance_s) / max(self.of_time, 1e-9)

    def apart_s(self, cost_s: float) -> float:
        """Seconds between two pieces of work that take `cost_s` each."""
        return cost_s / max(self.of_time, 1e-9)


def own_time() -> float:
    """Seconds by a clock that stands still while this thread waits for a processor: what lies
    between two of its times is what work has taken, in processor and disk time, however busy the
    machine is. Where the system does not tell that (not Linux), time goes on."""
    try:
        waited_ns = int(SCHEDSTAT.read_bytes().split()[1])
    except (OSError, ValueError, LookupError):
        waited_ns = 0
    return time.perf_counter() - 1e-9 * waited_ns


def usual_cost(before_s: float, cost_s: float) -> float:
    """Returns what a piece of work costs usually, after one more; `before_s` is 0 for the first.
    One that was held up counts for a fifth, a cheaper one at once."""
    return min(cost_s, 0.8 * (before_s or cost_s) + 0.2 * cost_s)


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
        self._share = Share(share)
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
            self.next_step = step + max(1, math.ceil(self._share.apart_s(cost_s) / step_s))
        else:  # the first look: how long a step takes is not known yet
            self.next_step = step + 10
