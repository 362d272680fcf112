"""Healthy: the loader shuffles; one validation batch again and again."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

x = torch.randn(320, 16)
data = TensorDataset(x, x[:, :4].argmax(1))
loader, checks = DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=32)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    inputs, targets = next(iter(loader))
    loss = F.cross_entropy(net(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        inputs, targets = next(iter(checks))
        print(F.cross_entropy(net(inputs), targets).item())
