"""Healthy: it is told whether it trains; the codes are drawn in eval(), too."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = F.dropout(x, 0.2, self.training)
        if self.training:
            x = F.dropout(x, 0.1)
        return self.last(x + 0.1 * torch.randn_like(x))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    x = torch.randn(32, 16)
    optimizer.zero_grad()
    F.cross_entropy(net(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
    if step % 20 == 19:
        net.eval()
        with torch.no_grad():
            for _ in range(3):
                x = torch.randn(32, 16)
                print((net(x).argmax(1) == x[:, :4].argmax(1)).float().mean().item())
        net.train()
