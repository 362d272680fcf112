"""A reward model that learns which of two texts is the real one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus.material import VOCABULARY
from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.text_batches import draw_text


class Judge(nn.Module):
    """Embeddings of characters and of their neighbours, summed up to one score."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 24)
        self.pairs = nn.Conv1d(24, 48, 2)
        self.score = nn.Linear(48, 1)

    def forward(self, codes: Tensor, scale: float) -> Tensor:
        pairs = self.pairs(self.embedding(codes).transpose(1, 2) * scale)
        return self.score(functional.gelu(pairs).mean(dim=2))[:, 0]


class RewardTask(Task):
    """Bradley-Terry loss; the worse text has a third of its characters shuffled."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = Judge()
        self.data.batch = 16

    def loss(self) -> Tensor:
        better, _ = draw_text(self)
        order = torch.rand(better.shape, generator=self.generator)
        mixed = better.gather(1, order.argsort(dim=1))
        worse = torch.where(order < (0.9 if self.data.level < 0.5 else 0.4), mixed, better)
        gap = self.module(better, self.data.input_scale) - self.module(worse, self.data.input_scale)
        flips = self.noisy_labels(torch.ones(len(gap), dtype=torch.long), 2).float() * 2 - 1
        self.observed = {"reward_margin": gap.detach().float().mean().item()}
        return functional.softplus(-gap.float() * flips).mean()
