"""Five small trainings of `benchmarks.corruption`: data, model, rates, average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import swa_utils

from benchmarks.corpus.lion import Lion

Batch = tuple[torch.Tensor, ...]
MODELS = ("mlp", "cnn", "transformer", "gru", "autoencoder")
OPTIMIZERS = ("AdamW", "SGD", "RMSprop", "Adagrad", "Lion")
DECAY = 0.98
"""Of the average of the weights: it forgets half in 34 steps."""


@dataclass(kw_only=True)
class Training:
    """What the loop needs.

    Attributes:
        loss: model, batch -> loss; the model is the trained one or its average.
        data: rows to train on.
        valid: rows on which the last losses are measured.
        average: of the weights; None if the script keeps them as a dict of tensors (`averaged`).
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    data: Batch
    valid: Batch
    average: nn.Module | None = None
    averaged: Mapping[str, torch.Tensor] | None = None

    def update_average(self) -> None:
        """As scripts write it: torch's own class, a copy of the model, or a dict of tensors."""
        if isinstance(self.average, swa_utils.AveragedModel):
            self.average.update_parameters(self.model)
            return
        with torch.no_grad():
            if self.average is not None:
                for mean, now in zip(
                    self.average.parameters(), self.model.parameters(), strict=True
                ):
                    mean.lerp_(now, 1 - DECAY)
            for name, mean in (self.averaged or {}).items():
                mean.mul_(DECAY).add_(self.model.get_parameter(name), alpha=1 - DECAY)

    def average_tensors(self) -> list[torch.Tensor]:
        if self.average is not None:
            return list(self.average.parameters())
        return list((self.averaged or {}).values())

    def average_model(self) -> nn.Module:
        """Returns a model with the averaged weights."""
        if self.average is not None:
            return self.average
        model = copy.deepcopy(self.model)
        model.load_state_dict(dict(self.averaged or {}), strict=False)
        return model


def build(model: str, optimizer: str, dtype: torch.dtype, seed: int) -> Training:
    """Returns a training; `seed` decides the first weights, nothing the data."""
    data, valid, loss, rate, make = _TASKS[model](torch.Generator().manual_seed(1), dtype)
    torch.manual_seed(seed)
    trained = make().to(dtype)
    training = Training(
        model=trained,
        optimizer=_optimizer(optimizer, trained, rate),
        loss=loss,
        data=data,
        valid=valid,
    )
    if model in ("cnn", "autoencoder"):
        training.average = swa_utils.AveragedModel(
            trained, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(DECAY), use_buffers=True
        )
    elif model == "mlp":
        training.averaged = {n: p.detach().clone() for n, p in trained.named_parameters()}
    else:
        training.average = copy.deepcopy(trained)
    return training


def _optimizer(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """`rate` is AdamW's; the others' are its usual multiples."""
    parameters = list(model.parameters())
    if name == "AdamW":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=10 * rate, momentum=0.9, weight_decay=5e-4)
    if name == "RMSprop":
        return torch.optim.RMSprop(parameters, lr=rate / 2, momentum=0.5)
    if name == "Adagrad":
        return torch.optim.Adagrad(parameters, lr=4 * rate)
    return Lion(parameters, lr=rate / 4, weight_decay=0.01)


def _split(data: Batch, held_out: int) -> tuple[Batch, Batch]:
    return tuple(part[held_out:] for part in data), tuple(part[:held_out] for part in data)


def _cast(dtype: torch.dtype, *tensors: torch.Tensor) -> Batch:
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)


def _mlp(generator: torch.Generator, dtype: torch.dtype) -> Any:
    x = torch.randn(4096, 8, generator=generator)
    y = x[:, 0].sin() + 0.5 * x[:, 1].abs() + 0.4 * torch.randn(4096, generator=generator)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.mse_loss(model(batch[0])[:, 0].float(), batch[1].float())

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)
        )

    return *_split(_cast(dtype, x, y), 1024), loss, 4e-3, make


def _cnn(generator: torch.Generator, dtype: torch.dtype) -> Any:
    shapes = torch.randn(10, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (6144,), generator=generator)
    pictures = shapes[labels] + 1.2 * torch.randn(6144, 1, 8, 8, generator=generator)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1], label_smoothing=0.1)

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * 16, 10),
        )  # fmt: skip

    return *_split(_cast(dtype, pictures, labels), 1024), loss, 2e-3, make


class _Characters(nn.Module):
    WORDS, LENGTH, WIDTH = 40, 16, 32

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(self.WORDS, self.WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(self.LENGTH, self.WIDTH))
        self.norm = nn.LayerNorm(self.WIDTH)
        self.qkv = nn.Linear(self.WIDTH, 3 * self.WIDTH)
        self.out = nn.Linear(self.WIDTH, self.WIDTH)
        self.wide = nn.Sequential(
            nn.LayerNorm(self.WIDTH), nn.Linear(self.WIDTH, 64), nn.GELU(), nn.Linear(64, 32)
        )
        self.head = nn.Linear(self.WIDTH, self.WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        return self.head(x + self.wide(x))


def _transformer(generator: torch.Generator, dtype: torch.dtype) -> Any:
    """Rows of a Markov chain in which some words are rare."""
    words, length = _Characters.WORDS, _Characters.LENGTH + 1
    chances = torch.rand(words, words, generator=generator) ** 6 + 1e-3
    rows = torch.randint(words, (2048, 1), generator=generator)
    for _ in range(length - 1):
        following = torch.multinomial(chances[rows[:, -1]], 1, generator=generator)
        rows = torch.cat([rows, following], 1)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        told = model(batch[0][:, :-1]).float()
        return F.cross_entropy(told.flatten(0, 1), batch[0][:, 1:].flatten())

    return *_split((rows,), 256), loss, 4e-3, _Characters


class _Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 20, batch_first=True)
        self.head = nn.Linear(20, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(x[..., None])[0])[..., 0]


def _gru(generator: torch.Generator, dtype: torch.dtype) -> Any:
    time = torch.arange(17) / 4
    frequency = 0.5 + 1.5 * torch.rand(2048, 2, 1, generator=generator)
    phase = 6.28 * torch.rand(2048, 2, 1, generator=generator)
    signal = (frequency * time + phase).sin().mean(1)
    signal = signal + 0.2 * torch.randn(2048, 17, generator=generator)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.mse_loss(model(batch[0][:, :-1]).float(), batch[0][:, 1:].float())

    return *_split(_cast(dtype, signal), 512), loss, 4e-3, _Forecaster


def _autoencoder(generator: torch.Generator, dtype: torch.dtype) -> Any:
    hidden = torch.randn(4096, 4, generator=generator)
    mix = torch.randn(4, 32, generator=generator)
    x = torch.tanh(hidden @ mix) + 0.3 * torch.randn(4096, 32, generator=generator)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.mse_loss(model(batch[0]).float(), batch[0].float())

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Linear(32, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Linear(32, 4),
            nn.Linear(4, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Linear(32, 32),
        )  # fmt: skip

    return *_split(_cast(dtype, x), 1024), loss, 3e-3, make


_TASKS: dict[str, Any] = {
    "mlp": _mlp, "cnn": _cnn, "transformer": _transformer, "gru": _gru, "autoencoder": _autoencoder,
}  # fmt: skip
