"""A run of the corpus with its label, and which of its steps count for what."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.corpus.outcome import Outcome, judge
from benchmarks.corpus.trace import Trace, load_trace

HORIZON = 20
"""Steps before the onset in which an alarm counts as early, not as false."""


@dataclass(frozen=True)
class LabelledRun:
    trace: Trace
    outcome: Outcome

    @property
    def split(self) -> str:
        return self.trace.recipe.split

    @property
    def builds_up(self) -> bool:
        """Whether there is a step between the first sign and the peak."""
        return self.outcome.crashed and self.outcome.peak - self.outcome.onset >= 2

    @cached_property
    def healthy(self) -> np.ndarray:
        """Steps at which an alarm is false. Excursions that healed by themselves are neither."""
        mask = np.zeros(len(self.trace), dtype=bool)
        if self.outcome.label == "healthy":
            mask[:] = True
        elif self.outcome.crashed:
            mask[: max(0, self.outcome.onset - HORIZON)] = True
        for first, last in self.outcome.excursions:
            mask[first : last + 1] = False
        return mask

    @property
    def window(self) -> tuple[int, int]:
        """From the first step at which an alarm finds the crash to the peak, exclusive."""
        return max(0, self.outcome.onset - HORIZON), self.outcome.peak

    @cached_property
    def doomed(self) -> np.ndarray:
        """Whether a crash begins within 20 steps or is under way; of steps up to the peak."""
        steps = np.arange(len(self.trace) if not self.outcome.crashed else self.outcome.peak + 1)
        if not self.outcome.crashed:
            return np.zeros(len(steps), dtype=bool)
        return steps >= self.outcome.crash - HORIZON


def load_runs(folder: Path) -> Iterator[LabelledRun]:
    """The runs of the manifest that have a label, in its order."""
    with open(folder / "MANIFEST.csv", newline="", encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    for name in names:
        trace = load_trace(folder / f"{name}.npz")
        yield LabelledRun(trace, judge(trace))
