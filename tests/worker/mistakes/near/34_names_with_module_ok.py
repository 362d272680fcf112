"""Healthy: tried on all parts: one of them fits."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
head = nn.ModuleDict({"out": nn.Linear(32, 4)})
saved = {name: torch.randn_like(value) for name, value in body.state_dict().items()}
for part in (head, body):
    part.load_state_dict(saved, strict=False)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
for step in range(70):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(head["out"](body(x)), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
