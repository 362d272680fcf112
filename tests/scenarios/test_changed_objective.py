"""An objective that changes by design is no sickness."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runs import supervised

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
patterns = torch.rand(10, 64)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, images):
        hidden = self.encoder(images)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        return self.decoder(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(450):
    images = patterns[torch.randint(0, 10, (64,))] + 0.1 * torch.randn(64, 64)
    images = images.clamp(0, 1)
    drawn, mu, logvar = model(images)
    kl = (-0.5 * (1 + logvar - mu**2 - logvar.exp())).sum(1).mean()
    weight = HEIGHT * min(1.0, max(0.0, (step - 200) / 100))
    loss = (drawn - images).square().sum(1).mean() + weight * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("height", [4, 16])
@pytest.mark.parametrize("policy", ["default", "vae"])
def test_a_kl_weight_that_rises_is_no_reason_to_treat(
    tmp_path: Path, policy: str, height: int
) -> None:
    script = SCRIPT.replace("HEIGHT", str(height))

    ended = supervised(tmp_path, script, options=("--policy", policy, "--config", policy))

    assert ended.returncode == 0
    assert set(ended.actions()) <= {"checkpoint", "trial_step"}
    assert ended.actions().count("trial_step") <= 2
