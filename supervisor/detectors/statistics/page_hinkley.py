"""The Page-Hinkley statistic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PageHinkley:
    """Accumulates deviations above the mean so far, minus `delta` per step (Page, 1954).

    Attributes:
        deviation: of the sum from its lowest value; large after the mean has risen.
    """

    __slots__ = ("_count", "_lowest", "_mean", "_sum", "delta", "deviation")

    def __init__(self, delta: float = 0.005) -> None:
        self.delta = delta
        self.clear()

    def clear(self) -> None:
        self.deviation = 0.0
        self._count = 0
        self._mean = 0.0
        self._sum = 0.0
        self._lowest = 0.0

    def update(self, value: float) -> float:
        """Takes in a finite value; returns the deviation."""
        self._count += 1
        self._mean += (value - self._mean) / self._count
        self._sum += value - self._mean - self.delta
        self._lowest = min(self._lowest, self._sum)
        self.deviation = self._sum - self._lowest
        return self.deviation

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self.__slots__:
            setattr(self, name, state[name])
