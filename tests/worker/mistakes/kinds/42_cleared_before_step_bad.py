"""Mistake: zero_grad stands between backward and step."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4)
for step in range(70):
    x = torch.randn(16, 16)
    loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
