"""A variational autoencoder of a photograph's patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.corpus.material import patches
from benchmarks.corpus.tasks.base import Task

LATENT = 8
DEVIATION = 0.15
"""Of the decoder's normal distribution: about the photograph's grain."""


class Autoencoder(nn.Module):
    """64-64-8-64-64."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).float().chunk(2, dim=1)
        latent = mean + noise * (0.5 * log_variance).exp()
        return self.decoder(latent).float(), mean, log_variance


class VaeTask(Task):
    """Loss: negative evidence bound per patch / 64; observes what the VAE preset watches."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = Autoencoder()
        self.data.batch = 32

    def loss(self) -> Tensor:
        tiles = patches() if self.data.level >= 0.5 else patches()[:200]
        x = tiles[self.draw(len(tiles))] - 0.5
        if self.data.label_noise:
            noise = torch.randn(x.shape, generator=self.generator)
            x = x + self.data.label_noise * noise
        noise = torch.randn(len(x), LATENT, generator=self.generator)
        rebuilt, mean, log_variance = self.module(x * self.data.input_scale, noise)
        error = ((rebuilt - x) / DEVIATION).square().sum(dim=1).mean() / 2
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1).mean() / 2
        self.observed = {
            "kl": kl.item(),
            "recon_loss": error.item(),
            "latent_variance": mean.var(dim=0).mean().item(),
            "active_units": (mean.var(dim=0) > 0.01).float().mean().item(),
        }
        return (error + self.data.kl_weight * kl) / 64
