"""A worker in this process, real but for the patches of torch, whose part a test plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supervisor.config import load_config, load_policy, save_resolved
from supervisor.records import WorkerOrder
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.run.run_state import save_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps
from supervisor.worker.build import BuiltWorker
from tests.journals import read_raw

CONFIG = ("checkpoint.min_free_gib=0", "checkpoint.every_steps=10", "probes.enabled=false")


class LiveWorker:
    """A linear model that learns to be its target, one batch a step.

    Args:
        folder: of the run; one that an earlier worker has left is gone on with.
        config: of the run, as on the command line.
        order: of the attempt.
        kept: memory that outlives the worker.
    """

    def __init__(
        self,
        folder: Path,
        config: Sequence[str] = (),
        order: WorkerOrder | None = None,
        kept: Sequence[str] = (),
    ) -> None:
        order = order or WorkerOrder(attempt=1)
        self.rundir = RunDirectory(folder)
        self.rundir.make(folder)
        save_resolved(load_config(overrides=[*CONFIG, *config]), self.rundir.config_yaml)
        save_resolved(load_policy(), self.rundir.policy_yaml)
        save_order(self.rundir, order)
        self.worker = BuiltWorker(self.rundir, order.attempt, kept=kept)
        self.session = self.worker.session
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self._has_ended = False
        self._numbers = torch.Generator().manual_seed(1)

    @property
    def weights(self) -> torch.Tensor:
        return self.model.weight.detach().clone()

    def step(self, scale: float = 1.0) -> None:
        """One step of the training; the loss is multiplied by `scale`."""
        model, optimizer, hooks = self.model, self.optimizer, self.session.hooks.now
        batch = torch.randn(8, 4, generator=self._numbers)
        output = hooks.forward(model, (batch,), {}, lambda: model(batch))
        hooks = self.session.hooks.now  # a replay may have arrived
        loss = ((output - batch.sum(1, keepdim=True)) ** 2).mean() * scale
        optimizer.zero_grad()
        hooks.backward(loss, lambda roots: roots.backward())
        hooks.before_update(optimizer, (), {})
        optimizer.step()
        hooks.after_update(optimizer, None)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def fail(self, owner: object, method: str) -> None:
        """From now on `method` of a part of the worker raises."""

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f"{method} is broken")

        setattr(owner, method, broken)

    def stop(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.session.stop(completed=True)

    def events(self, kind: str) -> list[Mapping[str, Any]]:
        return [e for e in read_raw(self.rundir.rank_journal(0)) if e["kind"] == kind]

    def checkpoints(self) -> list[int]:
        ring = CheckpointRing(self.rundir.checkpoints, load_config(overrides=CONFIG).checkpoint)
        return [checkpoint.step for checkpoint in ring.checkpoints()]

    def losses(self) -> list[float]:
        return [float(loss) for loss in read_steps(self.rundir.root)["loss"]]
