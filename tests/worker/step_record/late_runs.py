"""Small trainings whose numbers come late, and the same ones whose numbers are read at once.

There is no device here: with `device.late_reads=on` the CPU's tensors count as those of one that
answers one step later, and what is read earlier counts as a wait.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from supervisor.storage.steps.flight_reader import read_steps
from supervisor.worker.core.device_values import READS
from tests.journals import read_raw
from tests.worker.conftest import Start
from tests.worker.live_worker import LiveWorker

CALM = 64
"""Steps that are always read at once: at a run's start, and after trouble."""

CHEAP = (
    *("checkpoint.every_steps=50", "parting.enabled=false", "snapshot.every_steps=50"),
    "mistakes.enabled=false",  # while they are looked for, a step waits
)

Build = Callable[[list[nn.Parameter]], list[Optimizer]]


def fused(kind: type[Optimizer], **settings: Any) -> Build:
    return lambda weights: [kind(weights, **{"lr": 0.01, "fused": True, **settings})]


def halves(weights: list[nn.Parameter]) -> list[Optimizer]:
    return [AdamW(weights[:2], 0.01, fused=True), SGD(weights[2:], 0.01, fused=True)]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1))


def of_two_kinds() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), InHalf(nn.Linear(16, 1).bfloat16()))


class InHalf(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x.bfloat16()).float()


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 1, sparse=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.words((x * 10).long().abs() % 40).mean(1)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1, dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x.to(torch.complex64)).abs()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of training.

    Attributes:
        model: makes the network.
        build: makes the optimizers, the main optimizer first.
        faults: step → what goes wrong in it.
        has_scaler, has_closure, clips: as the script does it.
        parts: backwards of a step.
        clears: how gradients are cleared: ``none``, ``zero``, or ``seldom``: at every second step.
        waits: how often a calm step waits.
    """

    model: Callable[[], nn.Module] = network
    build: Build = field(default_factory=lambda: fused(AdamW))
    faults: Mapping[int, str] = field(default_factory=dict)
    has_scaler: bool = False
    has_closure: bool = False
    clips: bool = False
    parts: int = 1
    clears: str = "none"
    waits: float = 0.0


class LateRun(LiveWorker):
    """A small network; what the patches of torch do, it does itself."""

    def __init__(self, folder: Path, kind: Kind, config: tuple[str, ...] = ()) -> None:
        super().__init__(folder, (*CHEAP, *config))
        self.kind = kind
        torch.manual_seed(0)
        self.model = kind.model()  # type: ignore[assignment]
        self.optimizers = kind.build(list(self.model.parameters()))
        self.scaler = GradScaler("cpu", init_scale=1024.0, enabled=kind.has_scaler)
        self.number = 0
        self.waits: list[int] = []
        for optimizer in self.optimizers:
            self._watch(optimizer)
        if kind.has_scaler:
            self._watch_scaler()

    def _watch(self, optimizer: Optimizer) -> None:
        original = optimizer.step

        def step(*args: Any) -> Any:
            hooks = self.session.hooks.now
            args = (hooks.before_update(optimizer, args, {}) or (args, {}))[0]
            return hooks.after_update(optimizer, original(*args))

        optimizer.step = step  # type: ignore[method-assign,assignment]

    def _watch_scaler(self) -> None:
        scaler, maybe = self.scaler, self.scaler._maybe_opt_step

        def maybe_step(optimizer: Optimizer, *args: Any, **more: Any) -> Any:
            call = functools.partial(maybe, optimizer, *args, **more)
            return self.session.hooks.now.scaler_reads(optimizer, call)

        scaler._maybe_opt_step = maybe_step  # type: ignore[method-assign]

    def _backward(self, fault: str) -> torch.Tensor:
        hooks, model = self.session.hooks.now, self.model
        batch = torch.randn(8, 8, generator=self._numbers)
        if fault == "nan input":
            batch[0, 0] = math.nan
        output = hooks.forward(model, (batch,), {}, lambda: model(batch))
        loss = (output - batch.sum(1, keepdim=True)).square().mean()
        loss = loss * {"nan loss": math.nan, "high loss": 1e6}.get(fault, 1.0)
        loss = loss + 1e3 if fault == "another level" else loss
        scaled: Any = loss
        if self.kind.has_scaler:
            scaled = hooks.scale(self.scaler, loss, functools.partial(self.scaler.scale, loss))
        hooks.backward(scaled, lambda roots: roots.backward())
        return loss

    def _clear(self) -> None:
        for optimizer in self.optimizers:
            if self.kind.clears != "seldom" or self.number % 2 == 0:
                optimizer.zero_grad(set_to_none=self.kind.clears != "zero")

    def step(self, scale: float = 1.0) -> None:
        kind, hooks = self.kind, self.session.hooks.now
        fault = kind.faults.get(self.number, "")
        before = READS.waits
        self._clear()
        if kind.has_closure:
            closure = functools.partial(self._evaluate, fault)
            self.optimizers[0].step(closure)
        else:
            for _ in range(kind.parts):
                self._backward(fault)
            self._spoil(fault)
            if kind.clips:
                weights = list(self.model.parameters())
                clip = functools.partial(nn.utils.clip_grad_norm_, weights)
                hooks.clip(weights, 1.0, clip)
            for optimizer in self.optimizers:
                self._update(optimizer)
        self.waits.append(READS.waits - before)
        self.number += 1

    def _evaluate(self, fault: str) -> torch.Tensor:
        self._clear()
        loss = self._backward(fault)
        self._spoil(fault)
        return loss

    def _spoil(self, fault: str) -> None:
        gradient = list(self.model.parameters())[2 if "follower" in fault else 0].grad
        if "gradient" in fault and gradient is not None:
            values = gradient._values() if gradient.is_sparse else gradient
            values.view(-1)[:1] *= {"nan": math.nan, "inf": math.inf}.get(fault[:3], 1e6)

    def _update(self, optimizer: Optimizer) -> None:
        hooks = self.session.hooks.now
        if not self.kind.has_scaler:
            optimizer.step()
            return
        call = functools.partial(self.scaler.step, optimizer)
        hooks.scaler_step(self.scaler, optimizer, call)
        hooks.scaler_call(self.scaler.update)

    @property
    def state(self) -> list[torch.Tensor]:
        """Weights, buffers, the optimizers' state and the scaler's."""
        kept = [*self.model.state_dict().values()]
        for optimizer in self.optimizers:
            for entries in optimizer.state.values():
                kept += [value for value in entries.values() if torch.is_tensor(value)]
        if self.scaler.is_enabled():
            kept.append(torch.tensor(self.scaler.get_scale()))
        return kept

    def journal(self) -> list[dict[str, Any]]:
        """Without times, and what was written of looks and files."""
        lines = read_raw(self.rundir.rank_journal(0))
        left_out = {"time", "cost_s", "seconds", "duration_s", "id", "seq"}
        return [
            {key: value for key, value in line.items() if key not in left_out}
            for line in lines
            if line["kind"] in ("action", "alert", "risk", "update_skipped", "warning")
        ]

    def rows(self) -> np.ndarray:
        return read_steps(self.rundir.root)


ROWS = ("step", "flags", "loss", "grad_norm", "lr", "loss_scale", "batch_size", "risk", "observed")


def train(
    folder: Path,
    start: Start,
    kind: Kind,
    how: str,
    steps: int,
    *,
    ends: bool = True,
    settings: tuple[str, ...] = (),
) -> LateRun:
    """Trains, and ends the run; `how` is that of ``device.late_reads``."""
    of = functools.partial(LateRun, kind=kind)
    run = start(folder, of=of, config=(f"device.late_reads={how}", *settings))
    assert isinstance(run, LateRun)
    run.steps(steps)
    if ends:
        run.stop()
    return run


def differing(one: LateRun, other: LateRun) -> list[str]:
    """What of two runs is not the same, to the bit."""
    mine, theirs = one.rows(), other.rows()
    found = [name for name in ROWS if not np.array_equal(mine[name], theirs[name], equal_nan=True)]
    state = zip(one.state, other.state, strict=True)
    found += [f"state {i}" for i, (a, b) in enumerate(state) if not _same(a, b)]
    if repr(one.journal()) != repr(other.journal()):
        found.append("journal")
    return found


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(one.nan_to_num(7e7), other.nan_to_num(7e7)))


CLOSURE = Kind(build=lambda weights: [LBFGS(weights, 0.1, max_iter=3)], has_closure=True, waits=9.0)
FAULTS = ("nan loss", "nan gradient", "inf gradient", "huge gradient")
KINDS: dict[str, Kind] = {
    "fused AdamW": Kind(),
    "fused Adam, zeroed gradients": Kind(build=fused(Adam), clears="zero"),
    "fused SGD with momentum": Kind(build=fused(SGD, momentum=0.9)),
    "fused Adagrad, clipped": Kind(build=fused(Adagrad), clips=True),
    "not fused": Kind(build=fused(AdamW, fused=False), waits=1.0),
    "accumulated": Kind(parts=3),
    "gradients left": Kind(clears="seldom"),
    "fused with a scaler": Kind(has_scaler=True),
    "a scaler": Kind(build=fused(AdamW, fused=False), has_scaler=True),
    "two optimizers": Kind(build=halves),
    "a closure": CLOSURE,
    "of two kinds": Kind(model=of_two_kinds),
    "complex": Kind(model=Complex, build=fused(AdamW, fused=False), waits=1.0),
    "sparse": Kind(model=Sparse, build=lambda weights: [SparseAdam(weights)], waits=1.0),
    "a closure for Adam": Kind(has_closure=True, waits=1.0),
}
