"""An objective that changes by design: its treatment ends with the proof that nothing is sick."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.report.ledger import useful_steps
from supervisor.report.material import load_material
from tests.scenarios.runs import Ended, supervised

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
    weight = 4 * min(1.0, max(0.0, (step - 200) / 100))
    loss = (drawn - images).square().sum(1).mean() + weight * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def _the_rollback_was_taken_back(ended: Ended) -> None:
    """What it threw away is in the weights again; lost are the steps since, not those before."""
    (rollback,) = ended.events("rollback")
    (back,) = (
        event
        for event in ended.events("action")
        if event["name"] == "reinstate" and event["outcome"] == "applied"
    )
    assert back["fields"]["kept_step"] == rollback["before_step"]
    lost = int((~useful_steps(load_material(ended.run_dir))).sum())
    assert lost == back["step"] - rollback["step"]
    assert lost <= 3 < rollback["from_step"] - rollback["to_step"]


@pytest.mark.parametrize("policy", ["default", "vae"])
def test_a_kl_weight_that_rises_steeply_ends_no_run(tmp_path: Path, policy: str) -> None:
    """Without the comparison of old weights both policies gave this run up, after 61 treatments."""
    ended = supervised(tmp_path, SCRIPT, options=("--policy", policy, "--config", policy))

    assert ended.returncode == 0
    assert len(ended.found("another level")) == 1
    assert len(ended.actions()) <= 5
    _the_rollback_was_taken_back(ended)
    assert ended.events("restart") == []
