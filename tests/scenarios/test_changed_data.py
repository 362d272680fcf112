"""Data changed on purpose are told from damaged data, by what the run sees of its batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runs import Ended, supervised

IMAGES = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
CHANGE, AT = "WHAT", 250
classes = torch.randn(10, 64)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
nn.init.zeros_(model[2].weight)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(330):
    has_changed = step >= AT
    labels = torch.randint(0, 10 if has_changed and CHANGE == "classes" else 5, (32,))
    images = classes[labels] + 1.2 * torch.randn(32, 64)
    if has_changed and CHANGE == "scale":
        images = 60 * images.abs()
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TEXTS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
easy, hard = torch.randint(0, 200, (300,)), torch.randint(0, 200, (20_000,))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(200, 32), nn.Linear(32, 200)
        self.body = nn.GRU(32, 64, batch_first=True)
        self.up = nn.Linear(64, 32)

    def forward(self, input_ids=None, labels=None):
        hidden = self.up(self.body(self.embedding(input_ids))[0])
        return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(330):
    text = hard if step >= 250 else easy
    starts = torch.randint(0, len(text) - 17, (8,))
    window = text[starts[:, None] + torch.arange(17)]
    loss = model(labels=window[:, 1:], input_ids=window[:, :-1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLASSES = IMAGES.replace("WHAT", "classes")


@pytest.mark.parametrize("script", [CLASSES, TEXTS], ids=["classes", "texts"])
def test_data_changed_on_purpose_are_no_reason_to_treat(tmp_path: Path, script: str) -> None:
    ended = supervised(tmp_path, script)

    assert ended.returncode == 0
    assert set(ended.actions()) <= {"checkpoint"}
    assert [event["step"] for event in ended.found("other data")] == [251]
    assert not any(event["alarm"] for event in ended.events("risk"))


def test_without_a_look_at_the_batches_they_are_tried_and_not_treated(tmp_path: Path) -> None:
    ended = supervised(tmp_path, CLASSES, settings=("probes.enabled=false",))

    assert ended.found("other data") == []
    assert set(ended.actions()) == {"checkpoint", "trial_step"}


def test_inputs_that_are_damaged_are_no_other_data_and_no_weights_help(tmp_path: Path) -> None:
    ended = supervised(tmp_path, IMAGES.replace("WHAT", "scale"))

    assert ended.found("other data") == []
    assert set(ended.actions()) == {"checkpoint", "trial_step"}
    assert 250 <= _first_alarm(ended) <= 252


def _first_alarm(ended: Ended) -> int:
    return next(int(event["step"]) for event in ended.events("risk") if event["alarm"])
