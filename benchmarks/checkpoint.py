"""What a checkpoint costs: the time the training stands still, until it is on disk, and to restore.

    python -m benchmarks.checkpoint [--sizes 10 100 1000] [--quick] [--rounds 5] [--json FILE]

For each size (MB of a model and its two Adam moments) the same training state is saved by the
supervisor's own checkpointer, by ``torch.save``, and by ``torch.distributed.checkpoint``, in turn,
round after round. `stall` is the time until the training may go on, `durable` until an fsync has
returned, `restore` from the file to the live model and optimizer. Beside them stands one copy of as
many bytes within memory that was in use before: no stall can be shorter. Medians over the rounds;
the first round, which still makes its buffers, is left out. Where other work shares the machine,
the shortest stall by the shortest copy says more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from supervisor.held_memory import HeldMemory
from supervisor.settings import CheckpointSettings, SnapshotSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import state_bytes
from supervisor.training_state.state import TrainingState, read_state
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint, SingleWriter
from supervisor.worker.checkpoints.checkpointer import Checkpointer

SIZES_MB = (10, 100, 1000)
QUICK_SIZES_MB = (10, 100)
Times = dict[str, float]


class Training:
    """A model of linear layers that has made one step, so that the optimizer has its moments."""

    def __init__(self, size_mb: int) -> None:
        width = 256 if size_mb < 50 else 1024
        layers = max(1, round(size_mb * 1e6 / 12 / (width * width)))
        self.model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step()

    def step(self) -> None:
        """Changes every tensor, so that no page is shared with what was saved."""
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]


class Saver(ABC):
    """One way to save; `folder` is its own."""

    name: str

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder

    @abstractmethod
    def save(self, number: int) -> Times:
        """Saves, waits until all is on disk; returns `stall` and `durable` in seconds."""

    @abstractmethod
    def restore(self, number: int) -> None:
        """Reads what `save` wrote into the live objects."""


class Ours(Saver):
    """The worker's checkpointer: copy, write behind, checksum, fsync, rename."""

    name = "supervisor"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        registry = Registry()
        registry.add_model(training.model)
        registry.add_optimizer(training.optimizer)
        settings = CheckpointSettings(keep_last=1, min_free_gib=0.0)
        self.state = TrainingState(registry)
        self.ring = CheckpointRing(folder / "checkpoints", settings)
        journal = Journal(folder / "journal.jsonl", attempt=1, rank=0)
        self.checkpointer = Checkpointer(
            SingleWriter(self.ring, lambda: None),
            settings,
            journal,
            memory=HeldMemory(SnapshotSettings()),
        )

    def save(self, number: int) -> Times:
        started = time.perf_counter()
        captured = CapturedCheckpoint(
            step=number, state=self.state.capture(), meta={}, reason="benchmark"
        )
        self.checkpointer.save(captured, wait=False)
        stall = time.perf_counter() - started
        while self.checkpointer.is_busy:
            time.sleep(0.0005)
        return {"stall": stall, "durable": time.perf_counter() - started}

    def restore(self, number: int) -> None:
        self.state.restore(read_state(self.ring.get(number).path))


class TorchSave(Saver):
    """``torch.save`` in the loop, as most scripts do it; the fsync is counted in `durable` only."""

    name = "torch.save"

    def save(self, number: int) -> Times:
        started = time.perf_counter()
        torch.save(self.training.state_dict(), self.folder / "state.pt")
        stall = time.perf_counter() - started
        sync(self.folder)
        return {"stall": stall, "durable": time.perf_counter() - started}

    def restore(self, number: int) -> None:
        self.training.load_state_dict(torch.load(self.folder / "state.pt", weights_only=True))


class DistributedSave(Saver):
    """``torch.distributed.checkpoint.save``; one process, no process group."""

    name = "dcp.save"

    def save(self, number: int) -> Times:
        started = time.perf_counter()
        save(self.training.state_dict(), checkpoint_id=self.folder / "dcp", no_dist=True)
        stall = time.perf_counter() - started
        sync(self.folder)
        return {"stall": stall, "durable": time.perf_counter() - started}

    def restore(self, number: int) -> None:
        state = self.training.state_dict()
        load(state, checkpoint_id=self.folder / "dcp", no_dist=True)
        self.training.load_state_dict(state)


class DistributedAsyncSave(DistributedSave):
    """``torch.distributed.checkpoint.async_save`` with a stager that keeps its buffers."""

    name = "dcp.async_save"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        cuda = torch.cuda.is_available()
        self.stager = DefaultStager(StagingOptions(cuda, False, False, cuda))

    def save(self, number: int) -> Times:
        started = time.perf_counter()
        writing = async_save(
            self.training.state_dict(),
            checkpoint_id=self.folder / "dcp",
            async_stager=self.stager,
            no_dist=True,
        )
        stall = time.perf_counter() - started
        writing.result()  # type: ignore[union-attr]
        sync(self.folder)
        return {"stall": stall, "durable": time.perf_counter() - started}


SAVERS: tuple[type[Saver], ...] = (Ours, TorchSave, DistributedSave, DistributedAsyncSave)


def sync(folder: Path) -> None:
    """Returns when every file below `folder` is on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


class Copy:
    """One copy of so many bytes, from and to memory that was in use before."""

    def __init__(self, size: int) -> None:
        self._source = torch.ones(size // 4)
        self._target = torch.zeros(size // 4)

    def seconds(self) -> float:
        started = time.perf_counter()
        self._target.copy_(self._source)
        return time.perf_counter() - started


def measure(size_mb: int, rounds: int, folder: Path) -> dict[str, object]:
    """Medians in milliseconds of every way to save, and of the plain copy."""
    training = Training(size_mb)
    savers = []
    for kind in SAVERS:
        place = folder / kind.__name__
        place.mkdir(parents=True)
        savers.append(kind(training, place))
    ours = savers[0]
    assert isinstance(ours, Ours)
    size = state_bytes(ours.state.capture())
    copy = Copy(size)
    copies: list[float] = []
    taken: dict[str, list[Times]] = {saver.name: [] for saver in savers}
    for number in range(1, rounds + 2):
        training.step()
        copies.append(copy.seconds())
        for saver in savers:
            times = saver.save(number)
            started = time.perf_counter()
            saver.restore(number)
            taken[saver.name].append({**times, "restore": time.perf_counter() - started})
    memcpy = 1000 * statistics.median(copies[1:])
    rows = {
        name: {
            what: 1000 * statistics.median(times[what] for times in all_times[1:])
            for what in ("stall", "durable", "restore")
        }
        for name, all_times in taken.items()
    }
    return {
        "size_mb": size / 1e6,
        "memcpy_ms": memcpy,
        "ms": rows,
        "stall_over_memcpy": rows[ours.name]["stall"] / memcpy,
        "least_over_least": min(times["stall"] for times in taken[ours.name][1:]) / min(copies[1:]),
    }


def show(found: dict[str, object]) -> None:
    rows = found["ms"]
    assert isinstance(rows, dict)
    print(f"\n{found['size_mb']:.0f} MB of state; one copy in memory {found['memcpy_ms']:.1f} ms")
    print(f"{'':16} {'stall':>9} {'durable':>9} {'restore':>9}   (ms)")
    for name, times in rows.items():
        print(
            f"{name:16} {times['stall']:9.1f} {times['durable']:9.1f} {times['restore']:9.1f}"
            f"   stall {times['stall'] / float(str(found['memcpy_ms'])):.2f} copies"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", metavar="MB")
    parser.add_argument("--quick", action="store_true", help="without the largest size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch.distributed")
    results = []
    for size_mb in options.sizes or (QUICK_SIZES_MB if options.quick else SIZES_MB):
        folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))
        try:
            results.append(measure(size_mb, options.rounds, folder))
        finally:
            shutil.rmtree(folder)
        show(results[-1])
    worst, least = (
        max(float(str(found[name])) for found in results)
        for name in ("stall_over_memcpy", "least_over_least")
    )
    print(
        f"\nstall of the supervisor: at most {worst:.2f} copies in memory (goal: 1.2); "
        f"shortest stalls by shortest copies: at most {least:.2f}"
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
