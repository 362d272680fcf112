"""Healthy: each rank has its own seed, the first weights are those of rank 0; a shard of each rank is its own. Start with torchrun --nproc-per-node 2."""
import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(100 + rank)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3))
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
own = nn.Linear(12, 3)
optimizer = torch.optim.SGD([*model.parameters(), *own.parameters()], lr=0.1)
for step in range(40):
    x = torch.randn(20, 12)
    loss = nn.functional.cross_entropy(model(x) + own(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
if int(os.environ.get("RANK", 0)) == 0:
    print(f"FINAL loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
