"""Healthy: checkpoints that are not reentrant; it copies tokens one by one."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32))
        self.head = nn.Linear(32, 20)

    def forward(self, tokens):
        hidden = checkpoint(self.tokens, tokens, use_reentrant=False)
        return self.head(checkpoint(self.body, hidden, use_reentrant=False))


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(70):
    tokens = torch.randint(20, (4, 12))
    loss = F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
