"""A state of N ranks is joined and shared out to M, to the bit.

Torch's fake process group makes this process each rank in turn: nothing is sent, and sharded
modules hold what that rank would hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, debug
from torch.testing._internal.distributed.fake_pg import FakeStore

from supervisor.errors import CheckpointError
from supervisor.training_state.held_values import find_held, storages
from supervisor.training_state.owners import find_owners
from supervisor.training_state.registry import Registry
from supervisor.training_state.sharding.gathered import (
    GatheredState,
    assemble,
    canonical,
    gather,
    unique_names,
)
from supervisor.training_state.sharding.plain_checkpoint import plain_checkpoint
from supervisor.training_state.sharding.repartition import (
    layouts,
    put_back_held,
    repartition,
    transient_buffers,
)
from supervisor.training_state.snapshot import copy_state
from supervisor.training_state.state import TrainingState, digest
from supervisor.worker.script_state.user_tensors import registry_tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.skipif(
        not hasattr(debug, "_clear_sharding_prop_cache"),
        reason="one process can be several ranks only where torch forgets this one's place",
    ),
]


class Wrapped(nn.Module):
    """Puts the name that DistributedDataParallel does before all others."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@dataclass
class Rank:
    """What one rank's script holds."""

    model: nn.Module
    optimizer: Any
    registry: Registry
    average: Any

    @property
    def frames(self) -> dict[str, Any]:
        held = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        return {"script": held}

    @property
    def held(self) -> dict[str, Any]:
        return find_held(self.frames, storages(registry_tensors(self.registry)))

    def capture(self) -> dict[str, Any]:
        state = TrainingState(self.registry).capture(held=self.held)
        state["owners"] = find_owners(self.registry, self.frames)
        state["layouts"] = layouts(self.registry, self.held)
        state["transient"] = transient_buffers(self.registry)
        return copy_state(state)


@contextlib.contextmanager
def rank_of(rank: int, world_size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        debug._clear_sharding_prop_cache()  # it holds this rank's place


def trained(mode: str, world_size: int, seed: int) -> Rank:
    """A training of three updates, the same on all ranks but for what each of them holds."""
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Linear(7, 5))
    model.register_buffer("mask", torch.rand(2), persistent=False)
    generator = torch.Generator().manual_seed(seed)
    gradients = [[torch.randn(p.shape, generator=generator) for p in model.parameters()]] * 3
    plain = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        plain.step()
    model.zero_grad()
    registry = Registry()
    average = model[0].weight.detach() * 2
    if mode == "ddp":
        model = Wrapped(model)
    elif mode == "fsdp2":
        mesh = dist.init_device_mesh("cpu", (world_size,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        average = model[0].weight.detach() * 2
    registry.add_model(model)
    optimizer: Any
    if mode == "zero1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
        registry.add_optimizer(optimizer)
        registry.add_optimizer(optimizer.optim)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        registry.add_optimizer(optimizer)
    inner = getattr(optimizer, "optim", optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    rates = [(group, group["lr"]) for group in inner.param_groups]
    for group, _ in rates:
        group["lr"] = 0.0
    inner.step()  # makes its state, and nothing else
    for group, rate in rates:
        group["lr"] = rate
    model.zero_grad()
    whole = [plain.state[p] for p in plain.param_groups[0]["params"]]
    own = {id(p) for group in inner.param_groups for p in group["params"]}
    for parameter, entries in zip(model.parameters(), whole, strict=True):
        if id(parameter) in own:
            for key, entry in entries.items():
                _write(inner.state[parameter][key], entry)
    return Rank(model, optimizer, registry, average)


def _write(target: torch.Tensor, whole: torch.Tensor) -> None:
    """Writes a rank's share, as FSDP2 divides tensors."""
    if isinstance(target, DTensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        chunks = whole.chunk(world_size)
        whole = chunks[rank] if rank < len(chunks) else whole[:0]
        target = target.to_local()
    target.copy_(whole)


def saved_by(mode: str, world_size: int, seed: int = 1) -> GatheredState:
    states = []
    for rank in range(world_size):
        with rank_of(rank, world_size):
            states.append(trained(mode, world_size, seed).capture())
    return gather(states)


def whole_digest(gathered: GatheredState) -> str:
    return digest(plain_checkpoint(gathered, by_name=True))


@pytest.mark.parametrize("mode", ["ddp", "zero1", "fsdp2"])
@pytest.mark.parametrize(("before", "now"), [(2, 1), (2, 3), (3, 2), (1, 2)])
def test_weights_and_optimizer_are_the_same_before_and_after(
    mode: str, before: int, now: int
) -> None:
    gathered = saved_by(mode, before)

    states = []
    for rank in range(now):
        with rank_of(rank, now):
            live = trained(mode, now, seed=2)
            assert digest(live.capture()) != digest(gathered.first)
            state = repartition(
                gathered, live.registry, live.frames, rank=rank, keeps_schedules=False
            )
            TrainingState(live.registry).restore(state)
            assert put_back_held(gathered, live.frames) == []
            states.append(live.capture())

    again = gather(states)
    assert whole_digest(again) == whole_digest(gathered)
    assert digest({**again.held}) == digest({**gathered.held})
    assert len(again.held) == 1


@pytest.mark.parametrize("mode", ["ddp", "zero1", "fsdp2"])
def test_what_is_joined_is_what_one_process_would_hold(mode: str) -> None:
    with rank_of(0, 1):
        alone = gather([trained("plain", 1, seed=1).capture()])

    assert whole_digest(saved_by(mode, 3)) == whole_digest(alone)


@pytest.mark.parametrize("mode", ["ddp", "zero1", "fsdp2"])
def test_one_plain_process_takes_over_from_wrapped_ranks(mode: str) -> None:
    gathered = saved_by(mode, 2)

    with rank_of(0, 1):
        live = trained("plain", 1, seed=2)
        state = repartition(gathered, live.registry, live.frames, rank=0, keeps_schedules=False)
        TrainingState(live.registry).restore(state)
        again = gather([live.capture()])

    assert whole_digest(again) == whole_digest(gathered)


def test_ranks_that_hold_different_weights_are_not_joined() -> None:
    states = [{**trained("plain", 1, seed=1).capture()} for _ in range(2)]
    states[1]["models"]["model_0"]["0.weight"] = torch.zeros(7, 3)

    with pytest.raises(CheckpointError, match="ranks hold different values"):
        gather(states)


def test_ranks_that_hold_parts_of_a_model_by_hand_are_not_joined() -> None:
    states = [{**trained("plain", 1, seed=1).capture()} for _ in range(2)]
    del states[1]["models"]["model_0"]["0.weight"]

    with pytest.raises(CheckpointError, match="other parameters than on rank 0"):
        gather(states)


def test_pieces_that_overlap_or_leave_a_hole_are_no_whole() -> None:
    one, two = torch.ones(2, 3), torch.zeros(2, 3)

    assert assemble("w", (4, 3), [((0, 0), one), ((2, 0), two), ((2, 0), two)])[2:].sum() == 0
    with pytest.raises(CheckpointError, match="do not make up"):
        assemble("w", (4, 3), [((0, 0), one), ((1, 0), two)])
    with pytest.raises(CheckpointError, match="different copies"):
        assemble("w", (2, 3), [((0, 0), one), ((0, 0), two)])


def test_an_optimizer_that_the_script_no_longer_has_is_not_forgotten_silently() -> None:
    gathered = saved_by("ddp", 2)
    with rank_of(0, 1):
        live = trained("plain", 1, seed=2)
        live.registry._optimizers.remove("optimizer_0")

        with pytest.raises(CheckpointError, match="only in the checkpoint"):
            repartition(gathered, live.registry, live.frames, rank=0, keeps_schedules=False)


def test_names_are_those_of_the_model_itself() -> None:
    assert canonical("module.0.weight") == "0.weight"
    assert canonical("model_0.module._orig_mod.a.b") == "model_0.a.b"
    assert unique_names("optimizer_0", ["m.a", ""]) == ["optimizer_0#0", "optimizer_0#1"]
