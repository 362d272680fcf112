"""Contrastive pre-training with two encoders and mixed precision."""

import torch
import torch.nn as nn
from torch.cuda import amp
from torch.nn import functional as fn


class InfoNCE(nn.Module):
    def __init__(self, temperature=0.07):
        super().__init__()
        self.temperature = temperature

    def forward(self, a, b):
        a = a / a.norm(dim=-1, keepdim=True)  # planted: unguarded-normalisation
        b = fn.normalize(b, dim=-1)
        logits = a @ b.t() / self.temperature
        positives = logits.diagonal()
        denominator = torch.log(torch.exp(logits).sum(dim=1))  # planted: logsumexp-by-hand
        return (denominator - positives).mean()


class PairClassifier(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))
        self.bce = nn.BCELoss()

    def loss(self, x, y):
        with amp.autocast():
            p = torch.sigmoid(self.net(x))
            return self.bce(p, y)  # planted: bce-under-autocast


class Pretrainer:
    def __init__(self, encoder, args):
        self.encoder = encoder
        self.criterion = InfoNCE()
        self.opt = torch.optim.AdamW(encoder.parameters(), lr=args.lr)
        self.args = args

    def run(self, loader):
        for epoch in range(self.args.epochs):
            for a, b in loader:
                self.opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):  # planted: fp16-without-scaler
                    loss = self.criterion(self.encoder(a), self.encoder(b))
                loss.backward()
                self.opt.step()

    def uniformity(self, z):
        sq = (z[:, None] - z[None]).pow(2).sum(-1)
        return sq.sqrt().mean()  # planted: sqrt-at-zero


def similarity(q, k):
    with torch.autocast("cuda"):
        return torch.softmax(q @ k.transpose(-2, -1), dim=-1)  # planted: autocast-softmax-without-dtype


def variance(h):
    h = h.to(torch.float16)
    return h.pow(2).sum(dim=-1)  # planted: low-precision-reduction
