"""A script that says what it changes on purpose, killed right behind the change."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.steps.flight_reader import FlightReader
from tests.scenarios.runs import supervised

SCRIPT = """
import torch
from torch import nn
import supervisor

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
goal = torch.randn(8, 1)
for step in range(120):
    if step == 60:
        supervisor.announce("targets ten times as large")
    x = torch.randn(32, 8)
    y = x @ goal * (10.0 if step >= 60 else 1.0) + 0.3 * torch.randn(32, 1)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_announced_change_is_no_alarm_and_is_known_after_a_kill(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        SCRIPT,
        settings=("checkpoint.every_steps=60", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 61}]",
    )

    records = FlightReader(ended.run_dir / "steps" / "rank_0.steps").records()
    resumed = ended.events("resumed")
    assert [(event["from_step"], event["exactness"]) for event in resumed] == [(60, "exact")]
    assert [record.step for record in records if record.announced] == [60, 60]
    assert [event["detail"] for event in ended.found("announced change")] == [
        "targets ten times as large"
    ]
    assert ended.events("risk") == []
