"""Which sample of a batch is guilty: by its values, by the output, by the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from supervisor.worker.inspection.inspection import (
    FaultySample,
    culprit_sample,
    is_sharded,
    unwrapped,
    without_others,
)


class Distance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).pow(2).sum(1).sqrt()


class Share(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x / x.sum(1, keepdim=True)


def found(model: nn.Module, row: int, values: float) -> FaultySample:
    batch = torch.rand(6, 3) + 0.5
    batch[row] = values
    return culprit_sample(model, (batch,), {}, None)


@pytest.mark.parametrize(
    ("model", "values", "reason", "is_odd"),
    [
        (Share(), math.nan, "its own values are not finite", True),
        (Share(), 0.0, "alone it makes the output non-finite", False),
        (Distance(), 0.0, "alone it makes the gradient non-finite", False),
        (Distance(), 1e4, "its values are far from those of all others", True),
    ],
)
def test_the_guilty_row_is_found_with_its_reason(
    model: nn.Module, values: float, reason: str, is_odd: bool
) -> None:
    assert found(model, 4, values) == FaultySample(row=4, reason=reason, is_odd=is_odd)


def test_a_sound_batch_has_no_guilty_sample_and_leaves_no_gradient() -> None:
    model = Distance()

    assert found(model, 2, 1.0) == FaultySample()
    assert model.scale.grad is None


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_collective_raises_before_anything_is_sent(group: None) -> None:
    value = torch.ones(2)

    with without_others(), pytest.raises(RuntimeError, match="needs the other ranks"):
        distributed.all_reduce(value + 1)

    distributed.all_reduce(value)


def test_a_model_in_ddp_is_tried_out_without_it(group: None) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model = DistributedDataParallel(inner)

    with without_others():
        unwrapped(model)(torch.rand(4, 2)).sum().backward()

    assert unwrapped(model) is inner
    assert unwrapped(inner) is inner


def test_shards_are_seen(group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(2, 2)
    assert not is_sharded(model)

    fully_shard(model)

    assert is_sharded(model)


def test_one_process_has_no_others() -> None:
    with without_others() as mode:
        assert mode is None
