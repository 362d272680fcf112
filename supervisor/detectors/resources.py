"""Memory that grows, and steps that become slow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import Alert, Cause, Severity, StepRecord


@dataclass(kw_only=True, eq=False, repr=False)
class ResourcesDetector(Detector):
    """Compares each block of steps with the first one after warm-up. Reports only.

    Memory must have grown in each of `growing_blocks` blocks (caches fill up, a leak does not
    stop); the step time must exceed that of the best block by `slowdown` for two blocks.

    Args:
        block: steps of a block.
        memory_growth: relative growth since the first of the growing blocks.
        growing_blocks: blocks in a row; allocators and caches are full before the fifth.
        slowdown: relative rise of the median step time; smaller ones are common on shared machines.
    """

    name = "resources"
    _state = ("_memory", "_time", "_count", "_levels", "_best_time", "_slow", "_reported")

    block: int = 100
    memory_growth: float = 0.1
    growing_blocks: int = 5
    slowdown: float = 0.5

    def _begin(self) -> None:
        self._memory = -math.inf
        self._time = RobustWindow(self.block)
        self._count = 0
        self._levels: list[float] = []
        self._best_time = math.inf
        self._slow = 0
        self._reported = False

    def update(self, record: StepRecord) -> Alert | None:
        if abs(record.memory_gib) < 1e150:
            self._memory = max(self._memory, record.memory_gib)
        self._time.add(record.step_time_s)
        self._count += 1
        if self._count % self.block:
            return None
        return self._look(record)

    def _look(self, record: StepRecord) -> Alert | None:
        self.score = 0.0
        memory = self._look_at_memory(record)
        time = self._look_at_time(record)
        return memory or time

    def _look_at_memory(self, record: StepRecord) -> Alert | None:
        level, self._memory = self._memory, -math.inf
        if not 0 < level < math.inf:
            return None
        if self._levels and level <= self._levels[-1]:
            self._levels, self._reported = [], False
        self._levels = [*self._levels[-self.growing_blocks :], level]
        growth = min(level / self._levels[0] - 1.0, 1e6)
        if len(self._levels) <= self.growing_blocks or growth <= self.memory_growth:
            return None
        self.score = min(10.0, growth / self.memory_growth)
        if self._reported:
            return None
        self._reported = True
        return self._report(
            record,
            "memory_growth",
            f"memory grew by {growth:.0%} to {level:.3g} GiB and grows "
            "still; look for tensors kept with their graph",
            level,
            self._levels[0],
        )

    def _look_at_time(self, record: StepRecord) -> Alert | None:
        time = self._time.median
        if not 0 < time < 1e150:
            return None
        self._best_time = min(self._best_time, time)
        ratio = min(time / self._best_time - 1.0, 1e6)
        self._slow = self._slow + 1 if ratio > self.slowdown else 0
        if self._slow >= 2:
            self.score = max(self.score, min(10.0, ratio / self.slowdown))
        if self._slow != 2:
            return None
        return self._report(
            record,
            "step_time_regression",
            f"a step takes {time:.3g} s, {ratio:.0%} more than at "
            "its best; look at the loader and at other jobs",
            time,
            self._best_time,
        )

    def _report(
        self, record: StepRecord, kind: str, message: str, value: float, threshold: float
    ) -> Alert:
        return self.alert(
            record,
            severity=Severity.LOW,
            category="resources",
            kind=kind,
            cause=Cause.RESOURCES,
            message=message,
            value=value,
            threshold=threshold,
        )
