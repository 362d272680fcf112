"""Healthy: it does not matter for validation data that set_epoch is not called; the training's is."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 16)
data = TensorDataset(x, x[:, :4].argmax(1))
checks = TensorDataset(x[:64], x[:64, :4].argmax(1))
sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
loader = DataLoader(data, batch_size=16, sampler=sampler)
val_loader = DataLoader(checks, 4, sampler=DistributedSampler(checks, 2, 0))
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in val_loader:
            print(F.cross_entropy(net(x), y).item())
