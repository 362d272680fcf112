"""Gradients of each task are read, cleared, and put together before the update."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(110):
    x = torch.randn(32, 8)
    kept = []
    for task in range(2):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(x)[:, task], (x[:, task] > 0).float())
        loss.backward()
        kept.append([p.grad.clone() for p in net.parameters()])
    for p, *grads in zip(net.parameters(), *kept, strict=True):
        p.grad = sum(grads)
    optimizer.step()
