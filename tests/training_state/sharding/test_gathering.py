"""Weights that FSDP2 is gathering while others are put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import copy_state
from supervisor.training_state.state import TrainingState

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.skipif(
        not hasattr(torch.cpu.Stream, "record_event"), reason="this torch's FSDP2 runs on no CPU"
    ),
]


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_forward_gathers_the_weights_that_were_put_back() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    registry = Registry()
    registry.add_model(model)
    registry.add_optimizer(optimizer)
    x = torch.ones(1, 3)
    expected = model(x)
    state = TrainingState(registry)
    saved = copy_state(state.capture())
    expected.sum().backward()
    optimizer.step()

    model.unshard(async_op=True)
    state.restore(saved)

    assert [group._all_gather_result for group in model._get_fsdp_state()._fsdp_param_groups] == [
        None
    ]
    assert torch.equal(model(x), expected)
