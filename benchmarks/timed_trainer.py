"""An ordinary training that writes down how long each of its steps took.

python timed_trainer.py --batch 16 --steps 300 --out times.json
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, options.layers)
    model = nn.Sequential(nn.Embedding(64, 64), encoder, nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(0, 64, (4096, 33))
    times = []
    for _ in range(options.steps):
        started = time.perf_counter()
        rows = data[torch.randint(0, len(data), (options.batch,))]
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - started)
    with open(options.out, "w") as file:
        json.dump(times, file)


if __name__ == "__main__":
    main()
