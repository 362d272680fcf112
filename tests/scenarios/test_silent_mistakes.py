"""A script with silent mistakes, under supervision: they are told, and nothing else differs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scenarios.runs import again, differences, supervised, train_plainly

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.mix = nn.Linear(16, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(24, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        with torch.no_grad():
            shift = self.mix(torch.ones(16))
        return self.out(self.drop(self.rnn(x + shift)[0]))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
kept = None
for step in range(80):
    tokens = torch.randint(20, (4, 12))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 60:
        kept = model.state_dict()
    print("step", step, loss.item(), flush=True)
model.load_state_dict(kept)
torch.save(model.state_dict(), sys.argv[1])
"""
ON = ("mistakes.enabled=true", "checkpoint.every_steps=10", "checkpoint.background=false")


def told(events: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(e["alert_kind"], e["step"]) for e in events if e["category"] == "mistake"]


def test_mistakes_are_told_once_and_the_weights_are_those_of_plain_python_after_a_kill_too(
    tmp_path: Path,
) -> None:
    expected = train_plainly(tmp_path / "plain", SCRIPT)

    ended = supervised(
        tmp_path / "run", SCRIPT, settings=ON, faults="[{kind: sigkill, step: 45}]", timeout_s=100
    )

    assert ended.returncode == 0
    assert differences(ended.result(), expected.result()) == []
    assert [event["exactness"] for event in ended.events("resumed")] == ["exact"]
    assert told(ended.events("alert")) == [
        ("targets_are_the_input", 2),
        ("never_a_gradient", 20),
    ]
    assert ended.stderr.count("supervisor: warning: mistake: script.py:") == 2


def test_a_run_that_is_to_stop_at_a_mistake_ends_with_70_and_a_checkpoint_and_goes_on(
    tmp_path: Path,
) -> None:
    expected = train_plainly(tmp_path / "plain", SCRIPT)

    ended = supervised(
        tmp_path / "run",
        SCRIPT,
        settings=(*ON, "mistakes.stop=true", "report.enabled=true"),
        timeout_s=100,
    )

    assert ended.returncode == 70
    assert told(ended.events("alert")) == [("targets_are_the_input", 2)]
    assert ended.events("checkpoint_saved")[-1]["step"] == 3
    report = json.loads((ended.run_dir / "report" / "report.json").read_text())
    assert report["root_cause"] == "mistake"
    assert report["mistakes"][0]["kind"] == "targets_are_the_input"

    resumed = again(ended, "resume", "run")

    assert resumed.returncode == 0
    assert differences(resumed.result(), expected.result()) == []
