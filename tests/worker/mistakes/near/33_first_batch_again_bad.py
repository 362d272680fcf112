"""Mistake: the first batch at every update."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

x = torch.randn(320, 16)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=32)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    inputs, targets = next(iter(loader))
    loss = F.cross_entropy(net(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
