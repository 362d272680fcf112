"""The recent past of a signal, without outliers."""

from __future__ import annotations

import itertools
import math
from collections import deque

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.detectors.statistics.robust_window import NORMAL_MAD, RobustWindow

NORMAL_Q90 = 1.2816
"""The 90th percentile of a standard normal distribution; only upward noise matters."""

YOUNG_WINDOW = 15
"""Values that the window of a young run keeps at least."""

YOUNG_MARGIN = 2.0
"""Multiple of the step-to-step noise that is the scale of a young run, whose spread is mostly its
fall."""


REJECT_Z = 6.0


class Reference(NamedState):
    """Robust location and scale of the recent past of a signal, ending `lag` values ago.

    Values more than `REJECT_Z` scales above the median do not enter the window, until `adopt_after`
    of them came in a row. In a young run the window is a third of it, so that the steep fall of the
    first steps is soon forgotten.

    Attributes:
        window: the accepted values.
        floor: smallest scale, in the unit of the signal, for signals that are flat.
    """

    _state = ("window", "_pending", "_rejected", "_seen", "_scale")
    __slots__ = (*_state, "adopt_after", "floor", "lag")

    def __init__(
        self, *, floor: float, size: int = 50, lag: int = 3, adopt_after: int = 100
    ) -> None:
        self.window = RobustWindow(size)
        self.lag = lag
        self.floor = floor
        self.adopt_after = adopt_after
        self._pending: deque[float] = deque()
        self._rejected: deque[float] = deque(maxlen=adopt_after)
        self._seen = 0
        self._scale: float | None = None

    def __len__(self) -> int:
        return len(self.window)

    @property
    def median(self) -> float:
        return self.window.median

    @property
    def scale(self) -> float:
        """Standard deviation of the fitting normal distribution; at least `floor`."""
        if self._scale is None:
            self._scale = self._compute_scale()
        return self._scale

    def _compute_scale(self) -> float:
        window = self.window
        if not len(window):
            return self.floor
        above = (window.quantile(0.9) - window.median) / NORMAL_Q90
        scale = max(window.sigma, above)
        if self._seen < 3 * window.size:
            scale = min(scale, YOUNG_MARGIN * _step_scale(list(window.held)))
        return max(scale, self.floor)

    def z(self, value: float) -> float:
        """Returns how many scales `value` lies above the median; 0 while nothing is known.

        While the window is not full, the scale counts up to twice: few values are uncertain.
        """
        known = len(self.window)
        if not known:
            return 0.0
        z = (value - self.window.median) / self.scale
        return z if known >= self.window.size else z / (2.0 - known / self.window.size)

    def push(self, value: float) -> None:
        """Takes in the newest value, which `z` must judge first."""
        if value - value:  # NaN unless it is finite
            return
        self._seen += 1
        pending = self._pending
        pending.append(value)
        if len(pending) <= self.lag:
            return
        value, window = pending.popleft(), self.window
        # The scale is `floor` at least, and costs more than all the rest.
        least = REJECT_Z * self.floor
        if len(window.held) >= 10 and not window.is_surely_near(value, least):
            rise = value - window.median
            if rise > least and rise > REJECT_Z * self.scale:
                self._rejected.append(value)
                if len(self._rejected) >= self.adopt_after:
                    self._adopt()
                return
        window.add(value)
        self._scale = None
        if self._seen < 3 * window.size:
            window.shrink(max(YOUNG_WINDOW, self._seen // 3))
        if self._rejected:
            self._rejected.popleft()

    def clear(self) -> None:
        self.window.clear()
        self._pending.clear()
        self._rejected.clear()
        self._seen = 0
        self._scale = None

    def _adopt(self) -> None:
        self._scale = None
        self.window.clear()
        for value in list(self._rejected)[-self.window.size :]:
            self.window.add(value)
        self._rejected.clear()


def _step_scale(values: list[float]) -> float:
    """Returns the standard deviation of the noise around any trend, from differences of
    neighbours."""
    if len(values) < 3:
        return math.inf
    steps = sorted(abs(after - before) for before, after in itertools.pairwise(values))
    return NORMAL_MAD * steps[len(steps) // 2] / math.sqrt(2.0)
