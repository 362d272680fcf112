"""Healthy: freezing depends on an option, which is off here."""
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage, self.head = nn.Linear(16, 32), nn.Linear(32, 4)

    def train(self, mode=True):
        super().train(mode)
        if self.freezes:
            self.stage.requires_grad_(False)
        return self

    def forward(self, x):
        return self.head(self.stage(x).relu())


torch.manual_seed(0)
model = Model()
model.freezes = False
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(60):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"FINAL loss {loss.item():.3f}")
