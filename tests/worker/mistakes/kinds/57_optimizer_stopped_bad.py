"""Mistake: the optimizer's step() does nothing after a while."""
import torch
from torch import nn
from torch.nn import functional as F


class Patched(torch.optim.Adam):
    calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        if self.calls < 3:
            super().step()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = Patched(model.parameters(), 1e-3)
for step in range(90):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"FINAL loss {loss.item():.3f}")
