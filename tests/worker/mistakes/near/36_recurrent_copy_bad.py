"""Mistake: a recurrent language model whose targets are its input."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, 30)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


net = Model()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    tokens = torch.randint(30, (8, 16))
    logits = net(tokens)
    loss = F.cross_entropy(logits.transpose(1, 2).flatten(2).transpose(1, 2).reshape(-1, 30), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
