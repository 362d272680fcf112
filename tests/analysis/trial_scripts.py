"""Small scripts for trials, each as text."""

from __future__ import annotations

SEEDED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1); torch.set_num_threads(1)
X = torch.randn(96, 8); Y = (X[:, :1] * 2 + X[:, 1:2]).sin()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(9):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""

UNSEEDED = SEEDED.replace("torch.manual_seed(1); ", "")

HIDDEN = """
import ctypes
import torch
from torch import nn

torch.manual_seed(1); torch.set_num_threads(1)
libc = ctypes.CDLL(None); libc.srand(1)  # C code, whose place nobody puts back
class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) + libc.rand() % 7 / 7
X = torch.randn(96, 8); Y = X.sum(1, keepdim=True)
model = Noisy(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = nn.functional.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

HIDDEN_FROM_WEIGHTS = HIDDEN.replace("class Noisy", "seen = []\nclass Noisy").replace(
    "return super().forward(x) + libc.rand() % 7 / 7",
    "seen.append(libc.rand() % 7); return super().forward(x)",
)
"""Weights do not depend on what is hidden, a list of the script does."""

OF_RANKS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1); torch.set_num_threads(1)
X = torch.randn(96, 8); Y = (X[:, :1] * 2 + X[:, 1:2]).sin()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
model = DistributedDataParallel(model)
torch.manual_seed(10 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(80):
    i = torch.randint(0, 96, (8,))
    loss = nn.functional.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
dist.destroy_process_group()
"""
"""Each rank draws its own batches and dropout."""
