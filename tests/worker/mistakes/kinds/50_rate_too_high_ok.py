"""Healthy: another task from step 40 on: the loss is far above its first one for a while."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(130):
    x = torch.randn(32, 16)
    y = x[:, :4].argmax(1)
    loss = F.cross_entropy(net(x), y if step < 40 else (y + 1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
