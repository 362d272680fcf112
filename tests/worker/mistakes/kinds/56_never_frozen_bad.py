"""Mistake: train() is to freeze a stage, and is never called."""
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage, self.head = nn.Linear(16, 32), nn.Linear(32, 4)

    def train(self, mode=True):
        super().train(mode)
        self.stage.requires_grad_(False)
        return self

    def forward(self, x):
        return self.head(self.stage(x).relu())


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(60):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"FINAL loss {loss.item():.3f}")
