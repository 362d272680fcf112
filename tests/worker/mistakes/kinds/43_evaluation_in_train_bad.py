"""Mistake: no eval() before the validation, so dropout is on in its loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def data(n):
    x = torch.randn(n, 16)
    return TensorDataset(x, x[:, :4].argmax(1))


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.train_loader = DataLoader(data(640), batch_size=32, shuffle=True)
        self.val_loader = DataLoader(data(128), batch_size=32)

    def fit(self):
        for epoch in range(4):
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                self.criterion(self.net(x), y).backward()
                self.optimizer.step()
            print(self.validate())

    @torch.no_grad()
    def validate(self):
        total = 0.0
        for x, y in self.val_loader:
            out = self.net(x)
            total += self.criterion(out, y).item()
        return total / len(self.val_loader)


Trainer().fit()
