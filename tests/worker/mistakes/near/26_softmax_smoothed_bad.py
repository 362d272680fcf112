"""Mistake: softmax before cross_entropy, under autocast, with label smoothing."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(-1))
optimizer = torch.optim.Adamax(net.parameters(), lr=1e-3)
for step in range(70):
    x = torch.randn(32, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(x)
        loss = F.cross_entropy(out.float(), x[:, :4].argmax(1), label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
