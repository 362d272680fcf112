"""Mistake: a rate that is a hundred times too high."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=10.0, momentum=0.9)
for step in range(130):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
