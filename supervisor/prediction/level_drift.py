"""A level that leaves the best one the run has had, by more than noise."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.detectors.statistics.run_scale import TINY

WINDOW = 20
"""Steps of the mean that is the level. On the corpus' train and validation splits 15, 20 and 25
find as many crashes with as many false alarms; 10 and 30 are worse."""

MIN_VALUES = 10
"""Values before noise can be judged."""

RISE = math.log(1.25)
"""Smallest rise of a loss: what the corpus calls a crash, too."""

PROGRESS = 0.1
"""Share of all progress that must be lost: a loss that came down from 2 to 0.01 may wander there by
more than a quarter of itself."""

NOISE = 0.5 + 5.0 / math.sqrt(WINDOW)
"""Standard deviations of single steps that the level must rise: five standard errors of its mean,
and half a deviation because the best of many levels lies below them all."""

MEMORY = 120
"""Steps over which the noise is averaged; the noise of 60 follows a departure too soon."""

CLIP = 6.0
"""Deviations above the level as which a higher value counts: one bad batch is no level."""

ADOPT = 40
"""Steps in alarm after which the level is the new one: treatment had its time, and what has not
grown into a crash until then was other data."""

YOUNG = 150
"""Steps of a young run. A contrastive loss grows with the logarithm of its queue, by four fifths
within the first tenth: 26 batches of 256 of a queue of 65,536 (He et al., CVPR 2020), 102 of 64."""

BLOCK = 150
YOUNGER = 20
OLD = 600
"""From step `OLD` on the level that can be left is the best average of levels, over `BLOCK` of them
or a twentieth of the steps so far: a single lucky level is none. Until then the loss mostly falls,
and an average lies above what it has reached: it would cost crashes of the corpus."""

RECENT = 5
"""Last values whose median must be above the line, too: an excursion that has healed by the time
the level shows it is no departure."""

FIRST_MARK = 2 * WINDOW
MARKS = 4
"""Progress is counted from the level that the run had at a quarter to a half of its age, until it
is `FIRST_MARK` x 2^(`MARKS` - 1) = 320 steps old: what a first loss of 32 loses within 20 steps is
no progress of which a tenth could be given back."""

SMALL = 1e-9


class LevelDrift(NamedState):
    """Compares the mean of the last 20 values with the best that the run has had for a while.

    Everything here is a running sum, so that a step costs the same however long the run is, and
    slow climbs are not forgotten as by windows that slide along with them.

    A young loss that has not yet fallen by `RISE` has no level to leave: where the objective grows
    harder at first (a contrastive queue that fills), a healthy one rises from its start, and each
    higher level is adopted. On the corpus' train and validation splits this costs no crash.

    Args:
        linear: judge the values as they are (a reward's negative), not their logarithms.

    Attributes:
        distance: how far the level is above the best one, 1.0 at the line; 0 while unknown, and
            for a rise that is too small for any line. From the first negative value on nothing is
            judged in the log domain.
    """

    _state = (
        *("distance", "_values", "_levels", "_sum", "_average", "_best_average", "_noise", "_best"),
        *("_first", "_start", "_next_start", "_marks", "_seen", "_above", "_blind"),
    )

    def __init__(self, *, linear: bool = False) -> None:
        self._linear = linear
        self._floor = SMALL if linear else 0.02
        self.reset()

    def reset(self) -> None:
        self.distance = 0.0
        self._values: deque[float] = deque()
        self._levels: deque[float] = deque()
        self._sum = 0.0
        self._average = math.nan
        self._best_average = math.inf
        self._noise = 0.0
        self._best = math.inf
        self._first = 0.0
        self._start = 0.0
        self._next_start = 0.0
        self._marks = 0
        self._seen = 0
        self._above = 0
        self._blind = False

    def update(self, value: float) -> None:
        """Takes in a finite value; lower is better."""
        if not self._linear:
            if value < 0 or self._blind:
                self._blind, self.distance = True, 0.0
                return
            value = math.log(value if value > TINY else TINY)
        values = self._values
        count = len(values)
        if self._seen >= MIN_VALUES:
            level = self._sum / count
            noise = self._noise
            off = value - level if value > level else level - value
            if off > 4.0 * noise:
                off = 4.0 * noise
            # 1.2533 x mean deviation = 1 sigma of a normal distribution.
            share = 1.0 / (MEMORY if self._seen > MEMORY else self._seen)
            fresh = noise + (1.2533 * off - noise) * share
            self._noise = fresh if fresh > self._floor else self._floor
            if value > level + CLIP * noise:
                value = level + CLIP * noise
        self._seen += 1
        values.append(value)
        self._sum += value
        if count < WINDOW:
            if self._seen == MIN_VALUES:
                self._first = self._start = self._next_start = self._sum / MIN_VALUES
                spread = math.fsum(abs(v - self._first) for v in values)
                self._noise = max(self._floor, 1.2533 * spread / MIN_VALUES)
            if count + 1 < WINDOW:
                return
        else:
            self._sum -= values.popleft()
        self._judge(self._sum / WINDOW)

    def _judge(self, level: float) -> None:
        if self._seen == FIRST_MARK << self._marks and self._marks < MARKS and not self._linear:
            self._start, self._next_start = self._next_start, level
            self._marks += 1
        levels = self._levels
        levels.append(level)
        if len(levels) <= WINDOW:
            return
        best = self._take_in(levels.popleft())
        rise = level - best
        if rise <= (0.0 if self._linear else RISE):
            self.distance = 0.0
            self._above = 0
            return
        if self._seen < YOUNG and not self._linear and self._first - best < RISE:
            self.distance = 0.0
            self._adopt(level)
            return
        line = max(self._least(best), NOISE * self._noise)
        self.distance = rise / line
        if self.distance >= 1.0 and self._has_healed(best + 0.5 * line):
            self.distance = 0.0
        self._above = self._above + 1 if self.distance >= 1.0 else 0
        if self._above >= ADOPT:
            self._adopt(level)

    def _take_in(self, level: float) -> float:
        """Takes in a level; returns the one that a later level may have left."""
        self._best = min(self._best, level)
        size = max(1, min(BLOCK, self._seen // YOUNGER))
        before = level if math.isnan(self._average) else self._average
        self._average = before + (level - before) / size
        self._best_average = min(self._best_average, self._average)
        return self._best if self._linear or self._seen < OLD else self._best_average

    def _least(self, best: float) -> float:
        """The smallest rise above `best` that matters, whatever the noise."""
        if self._linear:
            return max(PROGRESS * (self._start - best), 0.25 * abs(best), SMALL)
        gain = math.expm1(min(max(self._start - best, 0.0), 50.0))
        return max(RISE, math.log1p(PROGRESS * gain))

    def _has_healed(self, line: float) -> bool:
        """Whether most of the last values are below `line` again."""
        recent = sorted(islice(reversed(self._values), RECENT))
        return not self._linear and recent[RECENT // 2] < line

    def _adopt(self, level: float) -> None:
        self._best = self._best_average = self._average = level
        self._above = 0
        self._levels.clear()
