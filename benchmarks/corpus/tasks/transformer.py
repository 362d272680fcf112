"""A transformer that reads text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus.material import VOCABULARY
from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.text_batches import LENGTH, draw_text

WIDTH, HEADS = 32, 2


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        qkv = self.qkv(self.norm_1(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Reader(nn.Module):
    """Embeddings, two blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, codes: Tensor, scale: float) -> Tensor:
        return self.head(self.blocks((self.embedding(codes) + self.position) * scale))


class TransformerTask(Task):
    """Predicts the next character."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = Reader()
        self.data.batch = 8

    def loss(self) -> Tensor:
        codes, targets = draw_text(self)
        logits = self.module(codes, self.data.input_scale).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
