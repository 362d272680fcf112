"""Healthy: FP32 masters."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).bfloat16()
masters = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
optimizer = torch.optim.AdamW(masters, lr=2e-5, weight_decay=0.0)
for step in range(70):
    x = torch.randn(64, 64)
    loss = F.cross_entropy(net(x.bfloat16()).float(), x[:, :8].argmax(1))
    loss.backward()
    for master, p in zip(masters, net.parameters()):
        master.grad, p.grad = p.grad.float(), None
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, net.parameters()):
            p.copy_(master)
