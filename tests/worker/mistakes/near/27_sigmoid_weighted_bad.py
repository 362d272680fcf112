"""Mistake: sigmoid before BCEWithLogitsLoss, multi-label."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.full((4,), 2.0))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, nesterov=True, momentum=0.9)
for step in range(70):
    x = torch.randn(32, 16)
    probability = torch.sigmoid(net(x))
    loss = criterion(probability, (x[:, :4] > 0).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
