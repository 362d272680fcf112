"""A line on one observed value, which must also exceed what is usual in this run."""

from __future__ import annotations

from typing import ClassVar

from supervisor.detectors.base.observed_line import ObservedLineDetector
from supervisor.detectors.statistics.robust_window import RobustWindow

MIN_LOOKS = 20
"""Looks after which it is known what is usual."""


class UsualLineDetector(ObservedLineDetector):
    """Keeps the last `window` values that were not beyond the line in `_usual`.

    Args:
        line: see `ObservedLineDetector`.
        over_usual: multiple of the highest usual value that a value must also exceed.
        window: looks kept.
        patience: looks in a row beyond the line.
    """

    _state: ClassVar[tuple[str, ...]] = (*ObservedLineDetector._state, "_usual")

    def __init__(self, *, line: float, over_usual: float, window: int, patience: int) -> None:
        self.over_usual = over_usual
        self.window = window
        super().__init__(line=line, patience=patience)

    def _begin(self) -> None:
        super()._begin()
        self._usual = RobustWindow(self.window)
