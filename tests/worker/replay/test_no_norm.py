"""Clipping in a replay returns a norm of the kind that the script expects."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

from supervisor.worker.replay.no_norm import no_norm


def test_of_plain_tensors_it_is_one() -> None:
    assert torch.equal(no_norm([torch.ones(3)]), torch.zeros(()))
    assert torch.equal(no_norm([]), torch.zeros(()))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_of_shards_it_is_one_that_has_a_full_tensor() -> None:
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,))
        norm = no_norm([distribute_tensor(torch.ones(4), mesh)])

        assert isinstance(norm, DTensor)
        assert torch.equal(norm.full_tensor(), torch.zeros(()))
        assert norm.item() == 0.0
    finally:
        dist.destroy_process_group()
