"""Mistake: zero_grad within the accumulation: three of four micro-batches are thrown away."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(70):
    for micro in range(4):
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), x[:, :4].argmax(1)) / 4
        loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
