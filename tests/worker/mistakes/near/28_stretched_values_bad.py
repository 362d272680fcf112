"""Mistake: Huber loss of (N, 1) values against (N,) returns."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    x = torch.randn(32, 16)
    returns = x.sum(1)
    loss = F.smooth_l1_loss(net(x), returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
