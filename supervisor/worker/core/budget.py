"""What our own work may cost: a share of the time, and when the next piece of it is due."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

CHECKPOINTS = 0.75
"""Of `checkpoint.max_overhead`; snapshots, which are more frequent and cost less, have the rest."""
SCHEDSTAT = Path("/proc/thread-self/schedstat")
ALLOWANCE_S = 0.1
"""Beyond its share, once: a small model takes 15 to 30 ms for its first exit copy, 4 ms for each of
13 snapshots until they are as far apart as later. A hundredth of 2,000 steps of 5 ms."""
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


class SharedBudget:
    """What copies of the state that can wait may cost together: snapshots, with the check for
    corruption before each, and exit copies, with the census in each.

    Credit grows with time at the sum of the members' shares, and a turn waits until the credit pays
    what it costs usually. So all together have spent at most the share of the time, the allowance,
    and one turn of each, whatever turns cost. A pause of the script is credit for one turn at most.

    `now` is `time.monotonic()`, as everywhere here; `share` that of all together.
    """

    def __init__(self, now: float) -> None:
        self.share = 0.0
        self.members: list[BudgetMember] = []
        self._credit_s, self._at = ALLOWANCE_S, now

    def join(self, share: float) -> BudgetMember:
        """Adds a member, with the share of the time that it would have alone; 0 for one that has no
        turns of its own."""
        member = BudgetMember(self, max(share, 1e-9))
        self.members.append(member)
        self.share += member.share
        return member

    @property
    def dearest_s(self) -> float:
        """What the dearest turn costs usually."""
        return max(member.usual_s for member in self.members)

    def pays_at(self, cost_s: float) -> float:
        """When there will be so much credit; it may be in the past."""
        return self._at + (cost_s - self._credit_s) / self.share

    def spend(self, cost_s: float, now: float) -> None:
        grown_s = self._credit_s + self.share * (now - self._at)
        self._credit_s = min(grown_s, max(ALLOWANCE_S, self.dearest_s)) - cost_s
        self._at = now


class BudgetMember:
    """One that shares a budget: adds `share` of the time; a turn of it costs `usual_s`."""

    def __init__(self, budget: SharedBudget, share: float) -> None:
        self.share = share
        self.usual_s = 0.0
        self._budget = budget
        self._last_at = -math.inf

    def took(self, cost_s: float, now: float) -> None:
        """It has had a turn, which cost `cost_s` of `own_time`."""
        self.usual_s = usual_cost(self.usual_s, cost_s)
        self._last_at = now
        self._budget.spend(cost_s, now)

    @property
    def early_at(self) -> float:
        """From when on there is credit for a turn, in the time of `time.monotonic`."""
        return self._budget.pays_at(self.usual_s)

    def next_at(self, first_s: float = 0.0) -> float:
        """When its next turn is: with credit for it, and an interval after the last one. A failure
        costs half an interval; the sum of such losses is least if they are as the roots of costs.

        Args:
            first_s: what its first turn takes beside the copy, for which others' turns stand.
        """
        budget = self._budget
        if self._last_at == -math.inf:
            return budget.pays_at(first_s + budget.dearest_s)
        roots = sum(one.share * math.sqrt(one.usual_s) for one in budget.members)
        apart_s = math.sqrt(self.usual_s) * roots / (self.share * budget.share)
        return max(self.early_at, self._last_at + apart_s)


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
