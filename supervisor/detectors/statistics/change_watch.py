"""Notices when the script changes its learning rate or batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.records import StepRecord


class ChangeWatch:
    """Counts the steps since the script last changed its learning rate or batch size.

    Detectors that compare with the past hold back for a while after such a change. Cuts and rises
    of the rate count, smooth schedules do not.

    Args:
        lr_ratio: ratio of two rates in a row that is a change.
    """

    __slots__ = ("_batch_size", "_lr", "lr_ratio", "since")

    def __init__(self, lr_ratio: float = 1.5) -> None:
        self.lr_ratio = lr_ratio
        self.clear()

    def clear(self) -> None:
        self.since = 10**9
        self._lr = math.nan
        self._batch_size = 0

    def update(self, record: StepRecord) -> bool:
        """Takes in a step; returns whether something changed at it."""
        changed = False
        lr, before = record.lr, self._lr
        if lr > 0:  # false for NaN
            if before > 0 and lr != before:
                ratio = lr / before
                changed = ratio > self.lr_ratio or ratio < 1 / self.lr_ratio
            self._lr = lr
        size, old = record.batch_size, self._batch_size
        if size > 0:
            # The last, smaller batch of an epoch is no change of the setting.
            if old > 0 and (size > old * 1.01 or size * 2 <= old):
                changed = True
            self._batch_size = size
        self.since = 0 if changed else self.since + 1
        return changed

    def state_dict(self) -> dict[str, Any]:
        return {"since": self.since, "lr": self._lr, "batch_size": self._batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.since = int(state["since"])
        self._lr = float(state["lr"])
        self._batch_size = int(state["batch_size"])
