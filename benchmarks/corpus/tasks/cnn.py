"""A convolutional network that reads digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.glyph_batches import draw_glyphs, glyph_loss


class CnnTask(Task):
    """Two strided convolutions with batch normalisation after the first, and a linear layer."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(256, 10)),
        )

    def loss(self) -> Tensor:
        return glyph_loss(self, *draw_glyphs(self))
