"""Healthy: train() at each epoch's start."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(2):
    net.train()
    for step in range(90):
        x = torch.randn(32, 16)
        loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(net(torch.randn(64, 16)).argmax(1).float().mean().item())
