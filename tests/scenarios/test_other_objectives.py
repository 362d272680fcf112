"""A loss that leaps because it means something else, with the same inputs, is no sickness."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runs import differences, supervised, train_plainly

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
def test_it_ends_with_the_weights_of_plain_python(tmp_path: Path, script: str) -> None:
    expected = train_plainly(tmp_path / "plain", script)

    ended = supervised(tmp_path / "supervised", script, settings=SETTINGS)

    assert any(event["alarm"] for event in ended.events("risk"))
    assert set(ended.actions()) <= {"checkpoint"}
    assert differences(expected.result(), ended.result()) == []


@pytest.mark.parametrize("script", [WRONG_LABELS, WEIGHTED], ids=["labels", "weight"])
def test_without_a_look_at_the_weights_it_is_treated(tmp_path: Path, script: str) -> None:
    ended = supervised(tmp_path, script, settings=(*SETTINGS, "probes.enabled=false"))

    assert "rollback" in ended.actions()


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
