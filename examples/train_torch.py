"""A plain PyTorch loop, end to end: data, training, validation, a result.

    python examples/train_torch.py
    supervisor run examples/train_torch.py                # the same weights, and it survives
    supervisor run --set 'faults=[{kind: sigkill, step: 150}]' examples/train_torch.py
    supervisor report runs/train_torch-...                # what happened

Nothing here knows of the supervisor but `observe`, which is optional: it hands over what
interception cannot see.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import supervisor


def spirals(count, seed):
    """Two interleaved spirals: points in the plane, and the arm of each."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, 2, (count,), generator=generator)
    turn = torch.rand(count, generator=generator) * 9.0 + 1.0
    angle = turn + arm * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1)
    return points / 5.0 + 0.05 * torch.randn(count, 2, generator=generator), arm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=15)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    train = torch.utils.data.TensorDataset(*spirals(2048, seed=1))
    loader = torch.utils.data.DataLoader(train, batch_size=64, shuffle=True)
    x_held_out, y_held_out = spirals(512, seed=2)

    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model.append(nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = arguments.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)

    for epoch in range(arguments.epochs):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            logits = model(x_held_out)
            held_out = F.cross_entropy(logits, y_held_out).item()
            accuracy = (logits.argmax(1) == y_held_out).float().mean().item()
        supervisor.observe(validation_loss=held_out, total_steps=steps)
        print(f"epoch {epoch}: validation loss {held_out:.6f}, accuracy {accuracy:.3f}", flush=True)
    print(f"result: {held_out:.6f} {accuracy:.3f}")


if __name__ == "__main__":
    main()
