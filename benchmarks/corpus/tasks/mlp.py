"""A perceptron that reads digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.glyph_batches import draw_glyphs, glyph_loss


class MlpTask(Task):
    """256-64-64-10 with ReLU."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = nn.Sequential(
            *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU()),
            *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        )

        self.data.batch = 32

    def loss(self) -> Tensor:
        return glyph_loss(self, *draw_glyphs(self))
