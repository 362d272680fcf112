"""Healthy: batch norm is estimated again on other data, in train() and without gradients."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def data(n):
    x = torch.randn(n, 16)
    return TensorDataset(x, x[:, :4].argmax(1))


net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
train_loader = DataLoader(data(640), batch_size=32, shuffle=True)
val_loader = DataLoader(data(128), batch_size=32)
for epoch in range(4):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in val_loader:
            out = net(x)
    print(loss.item(), out.std().item())
