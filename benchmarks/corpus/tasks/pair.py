"""A generative adversarial pair on digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.glyph_batches import draw_glyphs

USELESS = 1.0
"""Twice the distance of a generator that was never trained."""


class PairTask(Task):
    """The discriminator leads; the generator follows in `second_half` with its own optimizer.

    Cross-entropies, the generator's not saturating; labels are smoothed on the real side. The
    outcome is as for the other pair (`gan`): how far mean and deviation of what is made are off.
    """

    has_rival = True

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = nn.Sequential(
            *(nn.Linear(256, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.LeakyReLU(0.2)),
            nn.Linear(32, 1),
        )
        self.maker = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 256))
        self.maker_optimizer = torch.optim.Adam(self.maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.data.batch = 32

    def _made(self) -> Tensor:
        return self.maker(torch.randn(self.data.batch, 16, generator=self.generator))

    def loss(self) -> Tensor:
        real = draw_glyphs(self)[0].flatten(1)
        share = self.data.label_noise
        flipped = (torch.rand(len(real), generator=self.generator) < share).float()
        made = self._made().detach().float()
        means, spreads = made.mean(0) - real.mean(0), made.std(0) - real.std(0)
        self.outcome = max(USELESS, float((means.square() + spreads.square()).mean()))
        verdict = self.module(torch.cat([real, made]))[:, 0].float()
        truth = torch.cat([0.9 - 0.8 * flipped, 0.1 + 0.8 * flipped])
        return functional.binary_cross_entropy_with_logits(verdict, truth)

    def second_half(self) -> float:
        loss = functional.softplus(-self.module(self._made())[:, 0].float()).mean()
        self.maker_optimizer.zero_grad()
        loss.backward()
        self.maker_optimizer.step()
        return float(loss.detach())
