"""A small training that takes turns with another one: loader workers, or several ranks.

    tree_trainer.py --kind workers --turns 8 --turn-steps 64 --go FIFO --done FIFO

See `benchmarks.tree_cost`. Of several ranks the first waits for the turns, and so do the others,
for it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

ROWS = 16384
KINDS = ("workers", "persistent", "augmented", "stream", "alone", "ranks")


class Rows(Dataset[Any]):
    """Rows of 32 numbers, with noise if they are augmented."""

    def __init__(self, *, is_augmented: bool) -> None:
        self._rows = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(1))
        self._is_augmented = is_augmented

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row = self._rows[index]
        return (row + 0.1 * torch.randn(32) if self._is_augmented else row), index % 10


class Stream(IterableDataset[Any]):
    """The same rows, each worker its share."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rows = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(1))
        for index in range(first, ROWS, step):
            yield rows[index], index % 10


def batches_of(kind: str, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless: epoch after epoch."""
    if kind == "ranks":
        rows = torch.randn(4096, 32)
        labels = torch.arange(4096) % 10
        while True:
            picked = torch.randint(0, 4096, (batch,))
            yield rows[picked], labels[picked]
    workers = 0 if kind == "alone" else 2
    more: dict[str, Any] = {"persistent_workers": True} if kind == "persistent" else {}
    if kind == "stream":
        loader: Iterable[Any] = DataLoader(Stream(), batch, num_workers=workers)
    else:
        rows_of = Rows(is_augmented=kind == "augmented")
        loader = DataLoader(rows_of, batch, shuffle=True, num_workers=workers, **more)
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--turn-steps", type=int, required=True)
    parser.add_argument("--go", required=True)
    parser.add_argument("--done", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = 0
    if options.kind == "ranks":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
    go = os.open(options.go, os.O_RDONLY) if rank == 0 else -1
    done = os.open(options.done, os.O_WRONLY) if rank == 0 else -1
    torch.manual_seed(rank)
    width = options.width
    model: nn.Module = nn.Sequential(
        *(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        *(nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)),
    )
    if options.kind == "ranks":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = batches_of(options.kind, options.batch)
    for _ in range(options.turns):
        if rank == 0:
            os.read(go, 1)
        for _ in range(options.turn_steps):
            rows, labels = next(batches)
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0:
            os.write(done, b".")
    if options.kind == "ranks":
        del model
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
