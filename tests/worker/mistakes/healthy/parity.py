"""A task that is hard in its first steps: the parity of six bits, and a plateau."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(130):
    x = torch.randint(2, (64, 16)).float()
    loss = F.cross_entropy(net(x), x[:, :6].sum(1).long() % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
