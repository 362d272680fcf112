"""Trains a small GAN on a synthetic ring of eight clouds in the plane.

Two optimizers take turns; a supervisor counts both as one step. Its usual trouble is mode
collapse: `--hurry` provokes it by a generator that learns too fast.
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F

MODES = 8


def draw_clouds(count):
    angle = 2 * math.pi * torch.randint(MODES, (count,)) / MODES
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
        nn.Linear(64, outputs),
    )  # fmt: skip


def count_modes(points):
    """How many clouds are reached by at least two of a hundred points."""
    angle = torch.atan2(points[:, 1], points[:, 0]) % (2 * math.pi)
    nearest = torch.round(angle * MODES / (2 * math.pi)).long() % MODES
    near = (points.norm(dim=1) - 1).abs() < 0.3
    return int((torch.bincount(nearest[near], minlength=MODES) > 0.02 * len(points)).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hurry", action="store_true", help="provoke a mode collapse")
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    generator, critic = mlp(8, 2), mlp(2, 1)
    rate = 5e-3 if options.hurry else 5e-4
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=rate, betas=(0.5, 0.99))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
    for step in range(options.steps):
        real, fake = draw_clouds(128), generator(torch.randn(128, 8))
        critic_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        generator_loss = F.softplus(-critic(fake)).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        if step % 200 == 0:
            print(
                f"step {step}  critic {critic_loss.item():.3f}  generator"
                f" {generator_loss.item():.3f}  modes {count_modes(fake.detach())}",
                flush=True,
            )
    with torch.no_grad():
        print(f"final modes {count_modes(generator(torch.randn(1000, 8)))} of {MODES}", flush=True)


if __name__ == "__main__":
    main()
