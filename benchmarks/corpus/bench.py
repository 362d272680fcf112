"""The table on which one training is done, as far as conditions may touch it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from benchmarks.corpus.recipe import Recipe
from benchmarks.corpus.tasks.base import Task


@dataclass
class Bench:
    """A training in progress.

    Attributes:
        at: the step from which a condition that sets in later holds, 45 to 60 % of the run.
        lr_factor: on the learning rate of this step.
        keep_gradients: leave out `zero_grad`.
        intended: steps at which the data changed on purpose.
    """

    recipe: Recipe
    task: Task
    optimizer: torch.optim.Optimizer
    at: int
    lr_factor: float = 1.0
    keep_gradients: bool = False
    intended: list[int] = field(default_factory=list)
