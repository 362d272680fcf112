"""A training whose loading is slow, in six ways to load.

python loading_trainer.py --kind workers --steps 300
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

SAMPLE_S = 0.01
SAMPLES = 120
BATCH = 2
KINDS = ("no workers", "workers", "persistent", "iterable", "augmented", "augmented workers")
ROWS = torch.randn(SAMPLES, 32, generator=torch.Generator().manual_seed(1))


class Slow(TensorDataset):
    """Rows that take a while to load."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(SAMPLE_S)
        return super().__getitem__(index)


class Augmented(Slow):
    """The same, with noise."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        (row,) = super().__getitem__(index)
        shift = random.gauss(0.0, 0.1) + float(np.random.rand())
        return (row + 0.1 * torch.randn(32) + shift,)


class Stream(IterableDataset[Any]):
    """The rows in order, one after the other."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        for row in ROWS:
            time.sleep(SAMPLE_S)
            yield (row,)


def make_loader(kind: str) -> DataLoader[Any]:
    if kind == "iterable":
        return DataLoader(Stream(), batch_size=BATCH)
    data: Dataset[Any] = (Augmented if "augmented" in kind else Slow)(ROWS)
    workers = 2 if "workers" in kind.split() and kind != "no workers" else 0
    if kind == "persistent":
        return DataLoader(data, BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    return DataLoader(data, BATCH, shuffle=True, num_workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = make_loader(options.kind)
    step = 0
    while step < options.steps:
        for (rows,) in loader:
            loss = nn.functional.mse_loss(model(rows), rows[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1


if __name__ == "__main__":
    main()
