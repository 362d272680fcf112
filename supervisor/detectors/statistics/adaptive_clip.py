"""A clipping threshold that follows the run's own gradient norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.detectors.statistics.robust_window import RobustWindow


class AdaptiveClipThreshold:
    """The `share` quantile of the last `window` norms, within `low` ... `high`.

    For the first `warmup` norms it is `fixed`. Norms that are not finite are not taken in.
    """

    def __init__(
        self,
        *,
        share: float = 0.995,
        window: int = 1000,
        low: float = 1.0,
        high: float = 100.0,
        warmup: int = 100,
        fixed: float = 1.0,
    ) -> None:
        self.share = share
        self.low = low
        self.high = high
        self.warmup = warmup
        self.fixed = fixed
        self._norms = RobustWindow(window)

    @property
    def threshold(self) -> float:
        """The norm to clip the next gradient to."""
        if len(self._norms) < self.warmup:
            return self.fixed
        return min(self.high, max(self.low, self._norms.quantile(self.share)))

    def update(self, norm: float) -> float:
        """Takes in the norm before clipping; returns the new threshold."""
        if math.isfinite(norm):
            self._norms.add(norm)
        return self.threshold

    def reset(self) -> None:
        self._norms.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._norms.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._norms.load_state_dict(state["norms"])
