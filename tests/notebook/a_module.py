"""Functions as a program of a user's has them."""

from __future__ import annotations

import torch
from torch import nn


def train(steps: int, out: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.randn(64, 4)
    for _ in range(steps):
        loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), out)
