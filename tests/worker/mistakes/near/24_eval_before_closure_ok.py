"""Healthy: the mode is put back."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def validate(net):
    was = net.training
    net.eval()
    with torch.no_grad():
        found = net(torch.randn(64, 16)).mean().item()
    net.train(was)
    return found


net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
for step in range(70):
    x = torch.randn(32, 16)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
        loss.backward()
        return loss

    optimizer.step(closure)
    if step % 10 == 0:
        validate(net)
