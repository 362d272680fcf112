from __future__ import annotations

import subprocess
import sys

import pytest
import torch

torch_distributed = pytest.importorskip("torch.distributed")

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
DESTROYS = """
import sys, torch
import torch.distributed as dist
from torch import nn
from supervisor.worker.interception.group_ends import patch_group_ends

patch_group_ends()
sys.setswitchinterval(1000)  # seconds: a thread that wants the GIL gets it only where it is let go

def train():
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    model(torch.randn(2, 4)).sum().backward()
    total = torch.ones(3)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total

for _ in range(60):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    train()
print("ended")
"""


@pytest.mark.skipif(
    TORCH < (2, 7),
    reason="torch 2.6 hangs there now and then, also with what is kept",
)
def test_a_model_that_outlives_its_group_does_not_hang_at_its_end() -> None:
    # Of three processes without the patch, on two cores, two hung at one of these 60 ends.
    ended = subprocess.run(
        [sys.executable, "-c", DESTROYS], capture_output=True, text=True, timeout=100, check=False
    )

    assert ended.stdout == "ended\n", ended.stderr
