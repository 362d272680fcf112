"""Healthy: the logarithm of a softmax; similarities with a temperature."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adamax(net.parameters(), lr=1e-3)
for step in range(70):
    x = torch.randn(32, 16)
    with torch.autocast("cpu", torch.bfloat16):
        weights = net(x).float().softmax(-1)
        loss = F.nll_loss(weights.clamp_min(1e-8).log(), x[:, :4].argmax(1))
        cosine = F.normalize(weights, dim=-1)
        loss = loss + 0.1 * F.cross_entropy(cosine / 0.07, x[:, :4].argmax(1))
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
