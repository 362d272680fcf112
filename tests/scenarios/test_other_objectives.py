"""A loss that leaps because it means something else, with the same inputs, is no sickness."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runs import supervised

SETTINGS = ("snapshot.every_steps=25",)  # by the clock the windows compared would differ

BEGIN = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
centres = 1.5 * torch.randn(6, 16)
for step in range(400):
    labels = torch.randint(0, 6, (32,))
    inputs = centres[labels] + 0.4 * torch.randn(32, 16)
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "out.pt")
"""

WRONG_LABELS = BEGIN.replace(
    "LOSS",
    """if step >= 250:
        wrong = torch.rand(32) < 0.6
        labels = torch.where(wrong, torch.randint(0, 6, (32,)), labels)
    loss = F.cross_entropy(model(inputs), labels)""",
)

WEIGHTED = BEGIN.replace(
    "LOSS",
    """noisy = F.one_hot(labels, 6) + 0.5 * torch.randn(32, 6)
    loss = (8.0 if step >= 250 else 1.0) * F.mse_loss(model(inputs), noisy)""",
)


@pytest.mark.parametrize("script", [WRONG_LABELS, WEIGHTED], ids=["labels", "weight"])
def test_a_trial_step_shows_that_no_weights_are_to_blame(tmp_path: Path, script: str) -> None:
    ended = supervised(tmp_path, script, settings=SETTINGS)

    assert any(event["alarm"] for event in ended.events("risk"))
    assert [name for name in ended.actions() if name != "checkpoint"] == ["trial_step"]
    assert len(ended.found("another level")) == 1


def test_weights_that_were_damaged_are_treated(tmp_path: Path) -> None:
    damaged = BEGIN.replace(
        "LOSS",
        """if step == 250:
        with torch.no_grad():
            model[0].weight.mul_(6.0)
    loss = F.cross_entropy(model(inputs), labels)""",
    )
    damaged = damaged.replace("0.4 * torch", "2.0 * torch")

    ended = supervised(tmp_path, damaged, settings=SETTINGS)

    assert "rollback" in ended.actions()
