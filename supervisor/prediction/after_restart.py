"""The first losses after a restart, against the level before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

BLOCK = 10
"""Losses of which the median is kept, with the step of the last."""

PLACES = (2, 5, 7)
"""In a sorted block: the quartiles and the median."""

QUARTILES = 1.349
"""Standard deviations between the quartiles of a normal distribution."""

MOST = 256
"""Blocks that are kept: of a long run each second older one goes, again and again."""

LEVEL = 3
"""Blocks that make the level before: of a falling loss that is higher, never lower."""

LOOK = 10
"""Losses after the restart that are compared."""

FEWEST = 3
RISE = math.log(1.15)
ERRORS = 5.0
"""Standard errors of the median of the losses since the restart: at 5 none of 850 restarts that
put everything back (of the public logs' healthy rows, each compared with itself) is called lost."""


class AfterRestart:
    """Tells a restart that did not bring back what was there: weights, optimizer, order of data.

    Positive losses are judged by their logarithms; from the first other one on nothing is judged.

    Attributes:
        found: the losses since the restart lie above the level of the step that it went back to.
        step: the first step after the restart.
        of_log: it is a log's restart, of which no checkpoint of ours is known.
        before: the level before it, in the loss's own unit.
        values: losses of the present block: who has nothing else to say of a step adds it here.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.found = False
        self.step = -1
        self.of_log = False
        self.before = math.nan
        self._blocks: list[tuple[int, float, float]] = []
        self.values: list[float] = []
        self._since: list[float] = []
        self._level = math.nan
        self._spread = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next loss makes more than a value of the block."""
        return self.step >= 0 or len(self.values) >= BLOCK - 1

    def update(self, step: int, loss: float, *, restarted: bool) -> None:
        """Takes in a finite loss."""
        if loss <= 0:
            self.reset()
            return
        if restarted:
            self._begin(step)
        if self.step >= 0:
            self._compare(math.log(loss))
        values = self.values
        values.append(loss)
        if len(values) == BLOCK:
            self._keep(step, values)

    def _begin(self, step: int) -> None:
        """Looks up the level at `step`, to which the run went back; later blocks are undone."""
        self._blocks = [block for block in self._blocks if block[0] < step]
        self.values, self._since, self.found = [], [], False
        level = self._blocks[-LEVEL:]
        self.step = step if level else -1
        if level:
            self._level = median(block[1] for block in level)
            apart = abs(level[-1][1] - self._level)
            self._spread = max(0.02, apart, *(block[2] for block in level))
            self.before = math.exp(self._level)

    def _compare(self, value: float) -> None:
        since = self._since
        since.append(value)
        if len(since) > LOOK:
            self.found, self.step = False, -1
            return
        rise = median(since) - self._level
        errors = self._spread * math.sqrt(0.5 * math.pi / len(since))
        self.found = len(since) >= FEWEST and rise > max(RISE, ERRORS * errors)

    def _keep(self, step: int, values: list[float]) -> None:
        values.sort()
        low, middle, high = (math.log(values[place]) for place in PLACES)
        self._blocks.append((step, middle, (high - low) / QUARTILES))
        values.clear()
        if len(self._blocks) > MOST:
            half = MOST // 2
            self._blocks = self._blocks[:half:2] + self._blocks[half:]

    def state_dict(self) -> dict[str, Any]:
        return {
            "blocks": [list(block) for block in self._blocks],
            "values": list(self.values),
            "since": list(self._since),
            "step": self.step,
            "of_log": self.of_log,
            "level": self._level if self.step >= 0 else None,
            "spread": self._spread,
            "found": self.found,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._blocks = [(int(s), float(m), float(n)) for s, m, n in state["blocks"]]
        self.values, self._since = list(state["values"]), list(state["since"])
        self.step, self.found = int(state["step"]), bool(state["found"])
        self._level = math.nan if state["level"] is None else float(state["level"])
        self._spread = float(state["spread"])
        self.of_log = bool(state["of_log"])
        self.before = math.exp(self._level)
