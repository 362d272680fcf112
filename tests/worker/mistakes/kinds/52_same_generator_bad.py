"""Mistake: each worker has a copy of the data set's one generator."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Drawn(Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self):
        return 600

    def __getitem__(self, index):
        x = torch.randn(16, generator=self.generator)
        return x, x[:4].argmax()


net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for x, y in DataLoader(Drawn(), batch_size=8, num_workers=2, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
