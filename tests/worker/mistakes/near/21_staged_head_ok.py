"""Healthy: the second of two stages trains the head, with an optimizer of its own."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))


net = Net()
optimizer = torch.optim.RMSprop(net.body.parameters(), lr=1e-3)
for step in range(70):
    if step == 35:  # the second stage trains all of it
        optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4)
    x = torch.randn(32, 16)
    loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
