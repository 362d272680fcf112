"""Where a signal is against where it used to be, in the log domain."""

from __future__ import annotations

import math
from collections import deque

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.detectors.statistics.reference import Reference
from supervisor.detectors.statistics.robust_window import LOG_LEAP, RobustWindow
from supervisor.detectors.statistics.run_scale import TINY, RunScale

MIN_WINDOW = 10
"""Values that must be known before one can be judged."""

SMALL_RISE = math.log(1.1)
"""The smallest rise that a rule of the predictor looks at."""

WAIT = 20
"""Steps until a value enters the tail: long enough to know that it was no trouble."""

ALONE = 10
"""Steps without another alarm after which a spike was an isolated one."""


class Trajectory(NamedState):
    """Follows one signal and says how far the newest value lies off its course.

    Losses fall and noise grows by ratios, so a positive signal is judged by its logarithm. When a
    negative value comes, the signal is judged as it is for the rest of the run, and rises count in
    units of its own spread.

    Attributes:
        z: scales above the median of the reference, which ends a few steps ago; 0 for a rise that
            is too small for any rule.
        rise: log-ratio to that median, 0 where z is; in the linear domain the rise in spreads / 10.
        above_tail: above the 99th percentile of the last 1,000 values, outliers included.
        above_record: above all of them; a healthy heavy-tailed run has one such step in 1,000 at
            most, about.
        above_start: a leap above everything that the run has seen, its untrained start included.
    """

    _state = (
        *("reference", "tail", "scale", "_waiting", "_suspect", "_since_suspect", "_linear"),
        *("_highest", "_seen"),
    )

    def __init__(self, *, floor: float = 0.02) -> None:
        self.reference = Reference(floor=floor)
        self.tail = RobustWindow(1000)
        self.scale = RunScale()
        self._waiting: deque[float] = deque()
        self._suspect: float | None = None
        self._since_suspect = 0
        self._linear = False
        self._highest = -math.inf
        self._seen = 0
        self.calm()

    def update(self, value: float) -> None:
        """Judges the finite `value`, then takes it in."""
        if value < 0 and not self._linear:
            self._turn_linear()
        scale = self.scale
        scale.update(value)
        inner = value if self._linear else math.log(max(value, scale.floor, TINY))
        self._judge(inner)
        self._since_suspect += 1
        if self._suspect is not None:
            self._clear_suspect()
        self.reference.push(inner)
        waiting = self._waiting
        waiting.append(inner)
        if len(waiting) > WAIT:
            tail = self.tail
            tail.add(waiting.popleft())
            if self._seen < 1.5 * tail.size:
                most = max(1, self._seen * 2 // 3 - WAIT)
                if len(tail.held) > most:
                    tail.shrink(most)
        self._seen += 1
        if inner > self._highest and self.z < 6:
            self._highest = inner

    def calm(self) -> None:
        """No value was seen at this step."""
        self.z = self.rise = 0.0
        self.above_tail = self.above_record = self.above_start = False

    def forget(self) -> None:
        """An intended change: the next values are the new usual; the highest so far stays known."""
        self.reference.clear()
        self.tail.clear()
        self._waiting.clear()
        self._suspect = None
        self._seen = 0
        self.calm()

    def distrust(self) -> None:
        """The last steps were trouble: they must not enter the tail as usual variation.

        The newest of them becomes a suspect: if nothing followed it, a spike of this height is
        something that this run survives (the first batch of every epoch of a recurrent model), and
        enters the tail after all.
        """
        alone = self._suspect is None
        self._suspect = self._waiting[-1] if alone and self._waiting else None
        self._since_suspect = 0 if alone else -WAIT
        self._waiting.clear()

    def _clear_suspect(self) -> None:
        if self._suspect is not None and self._since_suspect > ALONE:
            self.tail.add(self._suspect)
            self._suspect = None

    def _judge(self, inner: float) -> None:
        window = self.reference.window
        self.z = self.rise = 0.0
        self.above_tail = self.above_record = self.above_start = False
        if len(window.held) < MIN_WINDOW or not self.scale.level > 0.0:
            return
        may_be_calm = inner <= self._highest and not self._linear
        if may_be_calm and window.is_surely_near(inner, SMALL_RISE):
            return
        rise = inner - self._usual()
        if not self._linear and rise <= SMALL_RISE:
            return
        unit = 1.0
        if self._linear:  # the floor of a logarithm's scale is a share of the size, too
            unit = 10.0 * max(self.reference.scale, self.reference.floor * self.scale.level)
        self.z = self.reference.z(inner)
        self.rise = rise / unit
        line = record = self.reference.window.highest
        if len(self.tail):
            line = max(line, self.tail.quantile(0.99))
            record = max(line, self.tail.highest)
        self.above_tail = inner > line
        self.above_record = inner > record
        self.above_start = not self._linear and inner > self._highest + LOG_LEAP

    def _usual(self) -> float:
        """What a rise counts from: the median; where most values are as good as zero, a ratio to
        them means nothing, and the run's size stands for them."""
        median = self.reference.window.median
        if self._linear or median > math.log(self.scale.floor) + SMALL_RISE:
            return median
        return math.log(self.scale.usual)

    def _turn_linear(self) -> None:
        self._linear = True
        self.reference.clear()
        self.tail.clear()
        self._waiting.clear()
        self._highest = -math.inf
