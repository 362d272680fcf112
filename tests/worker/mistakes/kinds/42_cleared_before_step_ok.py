"""Healthy: updates by hand; the step of the optimizer, without gradients, is for its schedule."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for step in range(70):
    x = torch.randn(16, 16)
    loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= optimizer.param_groups[0]["lr"] * p.grad
    optimizer.zero_grad()
    optimizer.step()
    schedule.step()
