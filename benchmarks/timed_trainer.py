"""An ordinary training that writes down how long each of its steps took, a turn at a time.

python timed_trainer.py --batch 16 --turns 20 --turn-steps 64 --out times.json [--go F --done F]
                         [--log reads|tensorboard|wandb] [--lightning]

With the two named pipes it waits for a byte from the one before each turn, and gives one to the
other behind it, so that two trainings can take turns on one machine. Its `time.monotonic` stands
still while it waits: supervision may do what it does by time for the training's own time alone.
`--log` writes down loss, gradient norm and learning rate in each step, as people do; `--lightning`
trains the same in Lightning's loop. Neither is supervised.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


class OwnTime:
    """`time.monotonic` without the turns of the others."""

    def __init__(self) -> None:
        self._clock = time.monotonic
        self._waited_s = 0.0

    def __call__(self) -> float:
        return self._clock() - self._waited_s

    def wait(self, go: int) -> None:
        began = self._clock()
        os.read(go, 1)
        self._waited_s += self._clock() - began


Log = Callable[[torch.Tensor, torch.Tensor, float], Any]


def log_to(kind: str | None) -> Log:
    """Returns what is done with loss, gradient norm and rate of a step."""
    if kind is None:
        return lambda loss, norm, rate: None
    if kind == "reads":
        return lambda loss, norm, rate: float(loss.item() + norm.item())
    if kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(tempfile.mkdtemp())
        steps = iter(range(1 << 62))

        def write(loss: torch.Tensor, norm: torch.Tensor, rate: float) -> None:
            step = next(steps)
            writer.add_scalar("loss", loss, step)
            writer.add_scalar("grad_norm", norm, step)
            writer.add_scalar("rate", rate, step)

        return write
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(silent=True))
    return lambda loss, norm, rate: run.log(
        {"loss": loss.item(), "grad_norm": norm.item(), "rate": rate}
    )


class Turns:
    """Waits for the turns of this process, and keeps the seconds of each step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._go = os.open(options.go, os.O_RDONLY) if options.go else -1
        self._done = os.open(options.done, os.O_WRONLY) if options.done else -1
        self._time = time.monotonic = OwnTime()  # type: ignore[assignment]
        self._turns: list[list[float]] = []
        self.clock = time.process_time if options.cpu else time.perf_counter

    def steps(self) -> Iterator[None]:
        """Yields once a step; the loop's body is what is timed."""
        for _ in range(self._options.turns):
            if self._go >= 0:
                self._time.wait(self._go)
            times: list[float] = []
            self._turns.append(times)
            for _ in range(self._options.turn_steps):
                started = self.clock()
                yield
                times.append(self.clock() - started)
            if self._done >= 0:
                os.write(self._done, b".")

    def write(self) -> None:
        with open(self._options.out, "w") as file:
            json.dump(self._turns, file)


def train(model: nn.Module, data: torch.Tensor, turns: Turns, batch: int, log: Log) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in turns.steps():
        rows = data[torch.randint(0, len(data), (batch,))]
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log(loss.detach(), norm, optimizer.param_groups[0]["lr"])


def train_in_lightning(model: nn.Module, data: torch.Tensor, turns: Turns, batch: int) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, rows: torch.Tensor) -> torch.Tensor:
            logits = self.model(rows[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def batches() -> Iterator[torch.Tensor]:
        for _ in turns.steps():
            yield data[torch.randint(0, len(data), (batch,))]

    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, gradient_clip_val=1.0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), batches())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--turn-steps", type=int, default=300)
    parser.add_argument("--cpu", action="store_true", help="CPU time of the process")
    parser.add_argument("--log", choices=("reads", "tensorboard", "wandb"))
    parser.add_argument("--lightning", action="store_true")
    parser.add_argument("--go")
    parser.add_argument("--done")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, options.layers)
    model = nn.Sequential(nn.Embedding(64, 64), encoder, nn.Linear(64, 64))
    data = torch.randint(0, 64, (4096, 33))
    log = log_to(options.log)
    turns = Turns(options)
    if options.lightning:
        train_in_lightning(model, data, turns, options.batch)
    else:
        train(model, data, turns, options.batch, log)
    turns.write()


if __name__ == "__main__":
    main()
