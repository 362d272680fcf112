"""A recurrent network that reads text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus.material import VOCABULARY
from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.text_batches import draw_text


class Recurrent(nn.Module):
    """Embedding, one LSTM layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 24)
        self.lstm = nn.LSTM(24, 48, batch_first=True)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, codes: Tensor, scale: float) -> Tensor:
        hidden, _ = self.lstm(self.embedding(codes) * scale)
        return self.head(hidden)


class LstmTask(Task):
    """Predicts the next character."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = Recurrent()
        self.data.batch = 8

    def loss(self) -> Tensor:
        codes, targets = draw_text(self)
        logits = self.module(codes, self.data.input_scale).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
