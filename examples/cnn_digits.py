"""Trains a small convolutional network to read digits in synthetic pictures.

The pictures are drawn here: seven-segment digits, shifted, slanted, blurred and noisy. An ordinary
script; FP16 or BF16 with ``--amp`` on a GPU.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

# Segments: top, upper left, upper right, middle, lower left, lower right, bottom.
SEGMENTS = ("1110111", "0010010", "1011101", "1011011", "0111010",
            "1101011", "1101111", "1010010", "1111111", "1111011")  # fmt: skip
PLACES = ((2, 5, 3, 11), (3, 8, 4, 6), (3, 8, 10, 12), (7, 9, 5, 11), (8, 13, 4, 6),
          (8, 13, 10, 12), (12, 14, 5, 11))  # fmt: skip


def draw(digit, rng):
    picture = np.zeros((16, 16), dtype=np.float32)
    for lit, (top, bottom, left, right) in zip(SEGMENTS[digit], PLACES, strict=True):
        if lit == "1":
            picture[top:bottom, left:right] = rng.uniform(0.6, 1.0)
    slant = rng.uniform(-0.25, 0.25)
    picture = np.stack([np.roll(row, round(slant * (8 - y))) for y, row in enumerate(picture)])
    picture = np.roll(picture, rng.integers(-2, 3, size=2), axis=(0, 1))
    return picture + 0.25 * rng.standard_normal((16, 16), dtype=np.float32)


def make_data(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, size=count)
    pictures = np.stack([draw(label, rng) for label in labels])
    return TensorDataset(torch.from_numpy(pictures)[:, None], torch.from_numpy(labels))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--amp", choices=("no", "fp16", "bf16"), default="no")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"no": None, "fp16": torch.float16, "bf16": torch.bfloat16}[options.amp]

    train = DataLoader(make_data(4000, 1), batch_size=64, shuffle=True)
    pictures, labels = (part.to(device) for part in make_data(1000, 2).tensors)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=options.amp == "fp16" and device == "cuda")
    for epoch in range(options.epochs):
        for x, y in train:
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        model.eval()
        with torch.no_grad():
            accuracy = (model(pictures).argmax(1) == labels).float().mean().item()
        model.train()
        print(f"epoch {epoch}  loss {loss.item():.4f}  accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
