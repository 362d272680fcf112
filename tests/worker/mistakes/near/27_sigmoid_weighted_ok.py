"""Healthy: focal loss: the sigmoid stands beside it."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, nesterov=True, momentum=0.9)
for step in range(70):
    x = torch.randn(32, 16)
    logits, wanted = net(x), (x[:, :4] > 0).float()
    probability = torch.sigmoid(logits)
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    right = probability * wanted + (1 - probability) * (1 - wanted)
    loss = (each * (1 - right).square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
