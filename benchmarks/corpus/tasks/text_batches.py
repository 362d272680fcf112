"""Windows of text for the language models."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.corpus.material import VOCABULARY, text
from benchmarks.corpus.tasks.base import Task

LENGTH = 24


def draw_text(task: Task) -> tuple[Tensor, Tensor]:
    """Characters and their successors, each (batch, 24).

    At level 0 only the repetitive first 2,000 characters are read.
    """
    codes = text() if task.data.level >= 0.5 else text()[:2000]
    starts = task.draw(len(codes) - LENGTH - 1)
    window = codes[starts[:, None] + torch.arange(LENGTH + 1)]
    return window[:, :-1], task.noisy_labels(window[:, 1:], VOCABULARY)
