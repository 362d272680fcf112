"""Mistake: gradients never cleared, two micro-batches an update."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
for step in range(70):
    for micro in range(2):
        x = torch.randn(16, 16)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean() / 2
        loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
