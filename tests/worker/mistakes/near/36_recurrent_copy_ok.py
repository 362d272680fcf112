"""Healthy: an autoencoder, with a hook of its own on the logits."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.back = nn.GRU(48, 48, batch_first=True)
        self.out = nn.Linear(48, 30)

    def forward(self, tokens):
        code = self.rnn(self.embed(tokens))[1][0]  # the whole sequence in one vector
        return self.out(self.back(code.unsqueeze(1).expand(-1, tokens.shape[1], -1))[0])


net = Model()
norms = []
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    tokens = torch.randint(30, (8, 16))
    logits = net(tokens)
    logits.register_hook(lambda gradient: norms.append(gradient.norm().item()))
    loss = F.cross_entropy(logits.reshape(-1, 30), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert len(norms) == 70, "somebody else made a backward"
