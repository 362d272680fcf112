"""Mistake: BF16 weights, updates are rounded away."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).bfloat16()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-5, weight_decay=0.0)
for step in range(70):
    x = torch.randn(64, 64)
    loss = F.cross_entropy(net(x.bfloat16()).float(), x[:, :8].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
