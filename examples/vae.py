"""Trains a variational autoencoder on synthetic pictures of soft discs.

Its usual trouble is posterior collapse: the latent code carries nothing any more. The one line
that shows it to a supervisor is `supervisor.observe`; without a supervisor it does nothing.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import supervisor


def make_discs(count, generator, size=16):
    """Soft discs of random place, radius and brightness: four factors to be found again."""
    x, y, radius, light = torch.rand(4, count, 1, 1, generator=generator)
    grid = torch.arange(size) / size
    away = ((grid[None, None, :] - x) ** 2 + (grid[None, :, None] - y) ** 2).sqrt()
    return ((0.4 + 0.6 * light) * torch.sigmoid(40 * (0.1 + 0.2 * radius - away))).flatten(1)


class VAE(nn.Module):
    def __init__(self, pixels=256, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, 128), nn.SiLU(), nn.Linear(128, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 128), nn.SiLU(), nn.Linear(128, pixels))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        latent = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return self.decoder(latent), mean, log_variance


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beta", type=float, default=1.0, help="10 makes the posterior collapse")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(1)
    pictures = make_discs(4096, generator)

    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(options.steps):
        batch = pictures[torch.randint(len(pictures), (64,))]
        logits, mean, log_variance = model(batch)
        rebuilt = F.binary_cross_entropy_with_logits(logits, batch, reduction="none").sum(1).mean()
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
        loss = rebuilt + options.beta * kl
        optimizer.zero_grad()
        loss.backward()
        supervisor.observe(kl=kl.item(), latent_std=mean.std(0).mean().item())
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}  rebuilt {rebuilt.item():.2f}  kl {kl.item():.2f}", flush=True)
    print(f"final loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
