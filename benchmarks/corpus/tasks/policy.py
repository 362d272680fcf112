"""A policy that learns to name digits by trial and reward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.glyph_batches import draw_glyphs


class PolicyTask(Task):
    """REINFORCE with a running baseline and an entropy bonus; reward 1 for the right digit.

    The loss says little here (it is negative half of the time), so the outcome is the reward.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.module = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 10))
        self.baseline = 0.1
        self.data.batch = 64

    def loss(self) -> Tensor:
        pixels, labels = draw_glyphs(self)
        log_odds = self.module(pixels).float().log_softmax(dim=1)
        odds = log_odds.detach().exp()
        if bool(odds.isfinite().all()):
            action = torch.multinomial(odds, 1, generator=self.generator)[:, 0]
        else:
            action = torch.zeros_like(labels)
        reward = (action == labels).float()
        entropy = -(log_odds.exp() * log_odds).sum(dim=1).mean()
        chosen = log_odds[torch.arange(len(labels)), action]
        loss = -((reward - self.baseline) * chosen).mean() - self.data.entropy_bonus * entropy
        mean = float(reward.mean())
        self.baseline += 0.05 * (mean - self.baseline)
        self.observed = {"reward": mean, "entropy": entropy.item()}
        self.outcome = 1.0 - mean
        return loss
