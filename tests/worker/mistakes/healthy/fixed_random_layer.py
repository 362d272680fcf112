"""A middle layer that is random and fixed on purpose, with its gradients left on."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
first, fixed, last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
net = nn.Sequential(first, nn.ReLU(), fixed, nn.ReLU(), last)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.05)
for step in range(70):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
