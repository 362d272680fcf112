"""Healthy: Monte Carlo dropout, in train() on purpose: each batch eight times, then its accuracy."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def data(n):
    x = torch.randn(n, 16)
    return TensorDataset(x, x[:, :4].argmax(1))


net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
train_loader = DataLoader(data(640), batch_size=32, shuffle=True)
val_loader = DataLoader(data(128), batch_size=32)
for epoch in range(4):
    for x, y in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        right = 0
        for x, y in val_loader:
            mean = torch.stack([net(x).softmax(-1) for _ in range(8)]).mean(0)
            right += (mean.argmax(1) == y).sum().item()
    print(right / 128)
