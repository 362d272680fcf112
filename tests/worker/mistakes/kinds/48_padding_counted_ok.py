"""Healthy: class 0 is real: "no name", for words and padding alike."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.rnn = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 6)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def batch():
    tokens = torch.randint(1, 30, (8, 12))
    places = torch.arange(12)[None] < torch.randint(4, 12, (8, 1))
    tokens = tokens * places
    return tokens, (tokens % 5) * places


net = Tagger()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    tokens, tags = batch()
    optimizer.zero_grad()
    loss = F.cross_entropy(net(tokens).transpose(1, 2), tags)
    loss.backward()
    optimizer.step()
