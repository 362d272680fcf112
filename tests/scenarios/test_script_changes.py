"""What the script does to weights itself raises its loss, and nothing is sick."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runs import differences, supervised, train_plainly

BEGIN = """
import copy
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
"""

TARGET_NETWORK = (
    BEGIN
    + """
values = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(values)
optimizer = torch.optim.Adam(values.parameters(), lr=3e-3)
for step in range(450):
    if step % 100 == 0:
        target.load_state_dict(values.state_dict())
    place, move = torch.randint(0, 10, (32,)), torch.randint(0, 2, (32,))
    then = (place + 2 * move - 1).clamp(0, 9)
    with torch.no_grad():
        worth = 10.0 * (then == 9) + 0.95 * target(F.one_hot(then, 10).float()).amax(1)
    given = values(F.one_hot(place, 10).float()).gather(1, move[:, None])[:, 0]
    loss = F.mse_loss(given, worth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(values.state_dict(), "out.pt")
"""
)

CLASSES = (
    BEGIN
    + """
centres = 1.5 * torch.randn(8, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(450):
    if step in (200, 400):
        CHANGE
    labels = torch.randint(0, 8, (32,))
    loss = F.cross_entropy(model(centres[labels] + 0.3 * torch.randn(32, 16)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "out.pt")
"""
)
NEW_LAYER = CLASSES.replace("CHANGE", "model[-1].reset_parameters()")

ANOTHER_HEAD = (
    BEGIN
    + """
body = nn.Linear(6, 32)
heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 32)])
both = nn.ModuleList([body, heads])
truth = torch.randn(6, 32)
optimizer = torch.optim.Adam([*body.parameters(), *heads[0].parameters()], lr=3e-3)
for step in range(450):
    if step == 250:
        optimizer.add_param_group({"params": list(heads[1].parameters())})
    numbers = torch.randn(32, 6)
    wanted = numbers @ truth
    wanted, head = (wanted[:, ::8], heads[0]) if step < 250 else (wanted, heads[1])
    loss = (head(F.relu(body(numbers))) - wanted).square().sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(both.state_dict(), "out.pt")
"""
)


@pytest.mark.parametrize(
    "script", [TARGET_NETWORK, NEW_LAYER, ANOTHER_HEAD], ids=["target", "new layer", "another head"]
)
def test_a_loss_that_rises_with_it_is_let_be(tmp_path: Path, script: str) -> None:
    expected = train_plainly(tmp_path / "plain", script)

    ended = supervised(tmp_path / "supervised", script)

    assert set(ended.actions()) <= {"checkpoint"}
    assert differences(expected.result(), ended.result()) == []
    assert ended.found("script change")


def test_weights_that_have_grown_are_no_wish_of_the_script(tmp_path: Path) -> None:
    damaged = CLASSES.replace("(200, 400)", "(200,)")
    damaged = damaged.replace("CHANGE", "nn.init.normal_(model[2].weight, std=30.0)")

    ended = supervised(tmp_path, damaged)

    assert "rollback" in ended.actions()
    assert not ended.found("script change")
