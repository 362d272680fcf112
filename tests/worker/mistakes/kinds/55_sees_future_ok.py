"""Healthy: attention without a mask, of a masked language model."""
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.places = nn.Embedding(24, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 30)

    def forward(self, tokens, labels):
        length = tokens.shape[1]
        x = self.embed(tokens) + self.places(torch.arange(length))
        logits = self.head(self.layer(x))
        loss = F.cross_entropy(logits.reshape(-1, 30), labels.reshape(-1), ignore_index=-100)
        return loss, logits


def batch():
    start, stride = torch.randint(30, (16, 1)), torch.randint(1, 6, (16, 1))
    return (start + stride * torch.arange(21)) % 30


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(60):
    tokens = batch()
    hidden = torch.rand(tokens.shape) < 0.2
    labels = tokens.masked_fill(~hidden, -100)
    loss, _ = model(tokens.masked_fill(hidden, 29), labels=labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"FINAL loss {loss.item():.3f}")
