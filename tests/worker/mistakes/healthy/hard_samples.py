"""The hardest half of each batch is chosen by a loss without gradients, in train()."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(960, 8)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 32, shuffle=True)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(4):
    for x, y in loader:
        with torch.no_grad():
            losses = F.cross_entropy(net(x), y, reduction="none")
        hard = losses.topk(16).indices
        optimizer.zero_grad()
        F.cross_entropy(net(x[hard]), y[hard]).backward()
        optimizer.step()
