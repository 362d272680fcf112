"""An optimizer behind the lead: its poisoned updates, and what its backward leaves the lead's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

SCRIPT = (
    PRELUDE
    + """
first, second = make_model(0.0), make_model(0.0)
leads, follows = (torch.optim.SGD(m.parameters(), lr=0.02) for m in (first, second))
for step in range(40):
    for model, optimizer in ((first, leads), (second, follows)):
        loss = F.mse_loss(model(X), Y)
        optimizer.zero_grad(); loss.backward()
        if step == 30 and optimizer is follows: model[0].weight.grad.fill_(torch.nan)
        optimizer.step()
torch.save(second[0].weight.detach(), sys.argv[-1])
"""
)


@pytest.mark.parametrize(
    ("policy", "outcome"), [("default", "applied"), ("observe_only", "would_have")]
)
def test_a_poisoned_update_of_a_second_optimizer(tmp_path: Path, policy: str, outcome: str) -> None:
    ended = supervised(tmp_path, SCRIPT, options=("--policy", policy))

    assert ended.returncode == 0, ended.stderr
    first = next(e for e in ended.events("action") if "second optimizer" in e["reason"])
    assert (first["name"], first["cause"]) == ("skip_update", "nonfinite")
    assert (first["outcome"], first["rung"]) == (outcome, -1)
    assert bool(torch.isfinite(ended.result()).all()) == (policy == "default")
    left_out = [e["step"] for e in ended.events("update_skipped")]
    assert left_out == ([first["step"]] if policy == "default" else [])


LEFT_OUT = (
    PRELUDE
    + """
import random
random.seed(3)
layers, head = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3)), make_model(0.0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.layers = layers; self.last = torch.nn.Linear(8, 1)
    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.6: x = x + layer(x)
        return self.last(x)
model = Net()
leads = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
follows = torch.optim.SGD(head.parameters(), lr=0.02)
for step in range(30):
    x = torch.randn(16, 8)
    loss = (model(x) ** 2).mean()
    loss.backward(); leads.step(); leads.zero_grad()
    follows.zero_grad()
    F.mse_loss(head(X), Y).backward(); follows.step()
torch.save({n: p.detach() for n, p in model.named_parameters()}, sys.argv[-1])
"""
)


def test_layers_that_a_step_leaves_out_have_no_gradient_after_a_resume(tmp_path: Path) -> None:
    undisturbed = train_plainly(tmp_path / "plain", LEFT_OUT)

    ended = supervised(
        tmp_path / "killed",
        LEFT_OUT,
        settings=("checkpoint.every_steps=4", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 23}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert differences(undisturbed.result(), ended.result()) == []
