"""Six small trainings whose final loss has a floor, so that two percent of it mean something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Batch = tuple[torch.Tensor, ...]


@dataclass
class Task:
    """What a loop needs of a training.

    Attributes:
        model, optimizer: what is trained, and by what.
        draw: generator → a training batch.
        loss: batch → loss.
        valid: the batch on which the final loss is measured.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    draw: Callable[[torch.Generator], Batch]
    loss: Callable[[Batch], torch.Tensor]
    valid: Batch


def build(name: str, lr_factor: float = 1.0) -> Task:
    """Returns the task `name`; `torch.manual_seed` decides its first weights, nothing its data."""
    return TASKS[name](torch.Generator().manual_seed(1), lr_factor)


def _rows(data: Batch, size: int) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        chosen = torch.randint(len(data[0]), (size,), generator=generator)
        return tuple(part[chosen] for part in data)

    return draw


def _split(data: Batch, held_out: int) -> tuple[Batch, Batch]:
    return tuple(part[held_out:] for part in data), tuple(part[:held_out] for part in data)


def _mlp(generator: torch.Generator, lr_factor: float) -> Task:
    x = torch.randn(4096, 8, generator=generator)
    y = x[:, 0].sin() + 0.5 * x[:, 1].abs() + 0.5 * torch.randn(4096, generator=generator)
    train, valid = _split((x, y), 1024)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2 * lr_factor)
    return Task(
        model, optimizer, _rows(train, 64), lambda b: F.mse_loss(model(b[0])[:, 0], b[1]), valid
    )


class _Characters(nn.Module):
    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.02 * torch.randn(32, width))
        self.block = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.05, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.token(tokens) + self.place, self.mask))


def _lm(generator: torch.Generator, lr_factor: float) -> Task:
    text = "".join(topics[name] for name in sorted(topics))[:66000].lower()
    numbers = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([numbers[c] for c in text]).unfold(0, 33, 11)
    tokens = tokens[torch.randperm(len(tokens), generator=generator)]
    train, valid = _split((tokens,), 256)
    model = _Characters(len(numbers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3 * lr_factor)

    def loss(batch: Batch) -> torch.Tensor:
        return F.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    return Task(model, optimizer, _rows(train, 16), loss, valid)


def _cnn(generator: torch.Generator, lr_factor: float) -> Task:
    shapes = torch.randn(10, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (12288,), generator=generator)
    pictures = shapes[labels] + 1.2 * torch.randn(12288, 1, 8, 8, generator=generator)
    wrong = torch.rand(12288, generator=generator) < 0.1
    labels = torch.where(wrong, torch.randint(10, (12288,), generator=generator), labels)
    train, valid = _split((pictures, labels), 2048)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.02 * lr_factor, momentum=0.9, weight_decay=5e-4
    )
    return Task(
        model, optimizer, _rows(train, 32), lambda b: F.cross_entropy(model(b[0]), b[1]), valid
    )


class _Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.SiLU(), nn.Linear(48, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + (0.5 * log_variance).exp() * noise), mean, log_variance


def _vae(generator: torch.Generator, lr_factor: float) -> Task:
    hidden = torch.randn(4096, 3, generator=generator)
    mix = torch.randn(3, 64, generator=generator)
    data = torch.tanh(hidden @ mix) + 0.3 * torch.randn(4096, 64, generator=generator)
    train, valid = _split((data,), 1024)
    model = _Vae()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3 * lr_factor)

    def loss(batch: Batch) -> torch.Tensor:
        rebuilt, mean, log_variance = model(batch[0])
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return 2.0 * (rebuilt - batch[0]).square().sum(1).mean() + kl

    return Task(model, optimizer, _rows(train, 32), loss, valid)


class _Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 20, batch_first=True)
        self.head = nn.Linear(20, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x[..., None])[0])[..., 0]


def _lstm(generator: torch.Generator, lr_factor: float) -> Task:
    time = torch.arange(21) / 4
    frequency = 0.5 + 1.5 * torch.rand(2048, 2, 1, generator=generator)
    phase = 6.28 * torch.rand(2048, 2, 1, generator=generator)
    clean = (frequency * time + phase).sin().mean(1)
    signal = clean + 0.2 * torch.randn(2048, 21, generator=generator)
    train, valid = _split((signal,), 512)
    model = _Forecaster()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3 * lr_factor)
    return Task(
        model,
        optimizer,
        _rows(train, 16),
        lambda b: F.mse_loss(model(b[0][:, :-1]), b[0][:, 1:]),
        valid,
    )


def _half(generator: torch.Generator, lr_factor: float) -> Task:
    """A network in FP16 throughout; with Adam's usual epsilon it cannot train: 1e-8 is 0 there."""
    task = _mlp(generator, lr_factor)
    model = task.model.half()

    def loss(batch: Batch) -> torch.Tensor:
        return F.mse_loss(model(batch[0].half())[:, 0].float(), batch[1])

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3 * lr_factor)
    return Task(model, optimizer, task.draw, loss, task.valid)


TASKS: dict[str, Any] = {
    "mlp": _mlp, "lm": _lm, "cnn": _cnn, "vae": _vae, "lstm": _lstm, "half": _half,
}  # fmt: skip
