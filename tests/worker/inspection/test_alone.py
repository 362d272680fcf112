"""What a rank tries out by itself reaches no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from supervisor.worker.inspection.alone import is_sharded, unwrapped, without_others


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
