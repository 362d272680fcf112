"""Mistake: attention drops out in eval(), too."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.dropout = nn.Linear(16, 48), 0.1

    def forward(self, x):
        q, k, v = self.inner(x).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)


net = nn.Sequential(nn.Embedding(20, 16), Attention(), nn.Linear(16, 20))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    tokens = torch.randint(20, (8, 12))
    optimizer.zero_grad()
    F.cross_entropy(net(tokens).flatten(0, 1), tokens.flip(1).flatten()).backward()
    optimizer.step()
    if step % 20 == 19:
        net.eval()
        with torch.no_grad():
            for _ in range(3):
                tokens = torch.randint(20, (8, 12))
                print(F.cross_entropy(net(tokens).flatten(0, 1), tokens.flip(1).flatten()).item())
        net.train()
