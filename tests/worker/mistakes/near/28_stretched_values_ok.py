"""Healthy: quantile regression: each with each, on purpose."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    x = torch.randn(32, 16)
    quantiles = net(x)
    target = x.sum(1, keepdim=True) + torch.randn(32, 8)
    loss = F.smooth_l1_loss(quantiles.unsqueeze(1), target.unsqueeze(2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
