"""UDA: in train(), without gradients, on other data; the loss of these targets has gradients."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 8)
labelled = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 16, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.randn(640, 8)), 16, shuffle=True)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(3):
    for (x, y), (u,) in zip(labelled, unlabelled, strict=True):
        loss = F.cross_entropy(net(x), y)
        with torch.no_grad():
            target = net(u).softmax(-1)
        if epoch:
            loss = loss + F.kl_div(net(u + 0.1).log_softmax(-1), target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
