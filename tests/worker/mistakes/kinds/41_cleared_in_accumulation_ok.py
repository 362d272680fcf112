"""Healthy: cleared once for each update; now and then a batch is left out."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(70):
    optimizer.zero_grad()
    for micro in range(4):
        x = torch.randn(16, 16)
        loss = F.cross_entropy(net(x), x[:, :4].argmax(1)) / 4
        loss.backward()
        if micro == 0 and step % 9 == 0:
            optimizer.zero_grad()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
