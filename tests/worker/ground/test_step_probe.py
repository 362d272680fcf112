"""What is gathered of a step becomes its record, and nothing of the next."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

from supervisor.worker.ground.step_probe import StepProbe, gradient_norm


def test_a_record_that_waits_does_not_get_what_the_next_step_observes() -> None:
    probe = StepProbe()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    waiting = probe.record(0, 1.0, optimizer)
    probe.observed.update({"kl": 0.5})
    following = probe.record(1, 2.0, optimizer)

    assert waiting.observed == {}
    assert following.observed == {"kl": 0.5}


def test_the_norm_counts_gradients_that_are_spread_over_ranks_beside_others() -> None:
    """A part of a model's layers in tensor parallel."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        plain = torch.nn.Parameter(torch.zeros(2))
        plain.grad = torch.tensor([3.0, 0.0])
        mesh = dist.init_device_mesh("cpu", (1,))
        spread = torch.nn.Parameter(distribute_tensor(torch.zeros(2), mesh))
        spread.grad = distribute_tensor(torch.tensor([0.0, 4.0]), mesh)

        assert gradient_norm([plain, spread]) == pytest.approx(5.0)
        assert gradient_norm([spread]) == pytest.approx(4.0)
    finally:
        dist.destroy_process_group()
