"""Published silent errors (TrainCheck, OSDI 2025, arXiv:2506.14813), rebuilt small, without a
reference run.

    python -m benchmarks.mistakes_traincheck [--json FILE]

Of its eighteen reproduced errors (OrderLab/TrainCheck-Evaluation-Workloads) seven can exist in a
training on a CPU; one of them takes two ranks. `LEFT_OUT` says why the others cannot.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.mistakes import alerts_of

LEFT_OUT = {
    "baichuan2-86": "data lost between GPUs",
    "pytorch-84803": "data lost between GPUs",
    "pytorch-96600": "data lost between GPUs",
    "deepspeed-1801": "tensor-parallel BF16 optimizer of DeepSpeed",
    "deepspeed-5794": "experts of DeepSpeed on several GPUs",
    "lightning-thunder-725": "autocast of a compiler of its own",
    "pytorch-104336": "parameters moved between CPU and GPU beneath DDP",
    "transformers-23723": "generation, no training",
    "transformers-34204": "input of a processor, no training",
    "transformers-17877": "slow initialisation, the weights are right",
    "pytorch-51800": "weights looked at before a spectral norm is first called",
}

_BEGIN = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)


def batch(n=32):
    x = torch.randn(n, 16)
    return x, x[:, :4].argmax(1)


def train(net, optimizer, steps=110, clear=True):
    for step in range(steps):
        x, y = batch()
        if clear:
            optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
"""
ERRORS: dict[str, tuple[str, str]] = {
    "pytorch-forum-84911": (
        "all layers are frozen, the new classifier too; batch norm alone is trained",
        """
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
model[0].requires_grad_(False)
model[3].requires_grad_(False)
train(model, torch.optim.Adam(model.parameters(), 1e-3))
""",
    ),
    "stackoverflow-60335387": (
        "no zero_grad",
        """
model = net()
train(model, torch.optim.Adam(model.parameters(), 1e-4), clear=False)
""",
    ),
    "stackoverflow-67180955": (
        "all loader workers draw the same",
        """
class Drawn(Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return torch.randn(16, generator=self.generator)


model = net()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for x in DataLoader(Drawn(), batch_size=8, num_workers=2):
    optimizer.zero_grad()
    F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
""",
    ),
    "transformers-33844": (
        "attention drops out in eval()",
        """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.dropout = nn.Linear(16, 48), 0.1

    def forward(self, x):
        q, k, v = self.inner(x)[:, None].chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)[:, 0]


model = nn.Sequential(Attention(), nn.Linear(16, 4))
train(model, torch.optim.Adam(model.parameters(), 1e-3), 20)
model.eval()
with torch.no_grad():
    for _ in range(4):
        model(batch()[0])
""",
    ),
    "mmpretrain-702": (
        "train() is to freeze a stage, and is never called",
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage, self.head = nn.Linear(16, 32), nn.Linear(32, 4)

    def train(self, mode=True):
        super().train(mode)
        self.stage.requires_grad_(False)
        return self

    def forward(self, x):
        return self.head(self.stage(x).relu())


model = Model()
train(model, torch.optim.Adam(model.parameters(), 1e-3))
""",
    ),
    "pytorch-115607": (
        "a compiled optimizer makes no more updates after a step without gradients",
        """
class Stale(torch.optim.Adam):
    count = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        if self.count < 3:
            super().step()


model = net()
train(model, Stale(model.parameters(), 1e-3))
""",
    ),
    "x-jxmnop-ddp-out-of-sync": (
        "the wrapper is left out in training (not run here: it takes two ranks)",
        "",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (what, text) in ERRORS.items():
            script = Path(folder) / f"{name.replace('-', '_')}.py"
            script.write_text(_BEGIN + text)
            told = [one[:2] for one in alerts_of(script)] if text else []
            rows.append({"error": name, "what": what, "told": told})
            print(json.dumps(rows[-1]), flush=True)
    told_ones = sum(bool(row["told"]) for row in rows)
    print(f"{told_ones} of {len(rows)} told in one process; {len(LEFT_OUT)} left out")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
