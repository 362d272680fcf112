"""Ranks of which only some train: the others serve them, and make no update."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.test_ranks import ends, group, torchrun

SERVER = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01) if rank == 0 else None
torch.manual_seed(1 + rank)
for step in range(8):
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    x = torch.randn(8, 4)
    model.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    for p in model.parameters():
        dist.reduce(p.grad, 0)
    if rank == 0:
        optimizer.step()
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], file=file)
dist.destroy_process_group()
"""
COLLECTORS = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = nn.Linear(4, 1)
if rank == 0:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(8):
    if rank > 0:
        dist.send(torch.randn(8, 4), 0)
        continue
    for source in range(1, dist.get_world_size()):
        x = torch.empty(8, 4)
        dist.recv(x, source)
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    optimizer.zero_grad()
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], file=file)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("script", "ranks"),
    [
        pytest.param(SERVER, 2, id="server"),
        pytest.param(COLLECTORS, 3, id="collectors", marks=pytest.mark.exhaustive),
    ],
)
def test_a_rank_that_makes_no_update_is_not_waited_for_a_minute(
    tmp_path: Path, script: str, ranks: int
) -> None:
    expected = torchrun(tmp_path / "torchrun", ranks, script)

    ended = group(tmp_path / "run", ranks, script=script)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, ranks) == expected
    assert "waits for what rank 0 exchanges behind its update" in ended.stderr
