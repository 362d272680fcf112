"""Mistake: the labels are shifted before the model shifts them."""
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
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        logits = self.head(self.layer(x, src_mask=mask, is_causal=True))
        # predicts the next token
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, 30), labels[:, 1:].reshape(-1))
        return loss, logits


def batch():
    start, stride = torch.randint(30, (16, 1)), torch.randint(1, 6, (16, 1))
    return (start + stride * torch.arange(21)) % 30


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(60):
    tokens = batch()
    loss, _ = model(tokens[:, :-1], labels=tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"FINAL loss {loss.item():.3f}")
