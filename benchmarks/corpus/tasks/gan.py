"""A generative adversarial pair on a photograph's patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from benchmarks.corpus.material import patches
from benchmarks.corpus.tasks.base import Task

USELESS = 1.5
"""Twice the distance of a generator that was never trained."""


class GanTask(Task):
    """The discriminator leads; the generator follows in `second_half` with its own optimizer.

    Least squares for both. A pair's losses are no measure of its success, so the outcome is how far
    mean and deviation of the made patches are off, from what is useless upwards.
    """

    generator_lr = 5e-4
    has_rival = True

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = nn.Sequential(
            spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(64, 1))
        )
        self.maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
        self.maker_optimizer = torch.optim.Adam(
            self.maker.parameters(), lr=self.generator_lr, betas=(0.5, 0.999)
        )
        self.data.batch = 32

    def _made(self) -> Tensor:
        return self.maker(torch.randn(self.data.batch, 8, generator=self.generator))

    def loss(self) -> Tensor:
        tiles = patches() if self.data.level >= 0.5 else patches()[:200]
        real = (tiles[self.draw(len(tiles))] - 0.5) * 3 * self.data.input_scale
        share = self.data.label_noise
        flipped = (torch.rand(len(real), 1, generator=self.generator) < share).float()
        made = self._made().detach().float()
        means, spreads = made.mean(0) - real.mean(0), made.std(0) - real.std(0)
        self.outcome = max(USELESS, float((means.square() + spreads.square()).mean()))
        verdict = self.module(torch.cat([real, made])).float()
        truth = torch.cat([1 - flipped, flipped])
        return functional.mse_loss(verdict, truth)

    def second_half(self) -> float:
        loss = (self.module(self._made()).float() - 1).square().mean()
        self.maker_optimizer.zero_grad()
        loss.backward()
        self.maker_optimizer.step()
        return float(loss)
