"""A look that fails, and a run that is looked at at every step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from supervisor.records import Alert, Cause, Severity
from supervisor.settings import ProbeSettings
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.registry import Registry
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.part import Ended
from supervisor.worker.probes.probes import Probes
from tests.scenarios.runs import differences, supervised, train_plainly

SCRIPT = """
import sys, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

class Attention(nn.Module):
    def __init__(self, by_hand):
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(16, 48), nn.Linear(16, 16), nn.Dropout(0.1)
        self.by_hand = by_hand
    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            mixed = self.drop(F.softmax(q @ k.transpose(-2, -1) / 8**0.5, dim=-1)) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(30, 16), Attention(True), nn.LayerNorm(16), Attention(False),
    nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 16), nn.ReLU(),
    nn.Linear(16, 30),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
texts = DataLoader(torch.randint(0, 30, (240, 12)), batch_size=4, shuffle=True)
for step, x in enumerate(texts):
    loss = F.cross_entropy(model(x).flatten(0, 1), x.roll(1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
torch.save(model.state_dict(), sys.argv[1])
"""


def probes_in(folder: Path, warned: list[str], model: nn.Module | None = None) -> Probes:
    registry = Registry()
    if model is not None:
        registry.add_model(model)
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(probes=ProbeSettings(every_steps=1)),
        registry=registry,
        call_state=CallState(),
        journal=Journal(folder / "rank_0.jsonl", attempt=1, rank=0),
        warn=warned.append,
    )
    return Probes(context)


def test_an_error_ends_the_looks_and_not_the_training(tmp_path: Path) -> None:
    warned: list[str] = []
    probes = probes_in(tmp_path, warned)

    probes.start(30)
    found = probes.before_update(30, None, [None])  # type: ignore[arg-type, list-item]
    probes.after_update(30)

    assert found == {}
    assert not probes.is_on
    assert probes.next_step == math.inf
    assert len(warned) == 1


def test_an_alert_names_the_tensors_that_it_is_about(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    probes = probes_in(tmp_path, [], model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = 100.0 * torch.ones_like(parameter)

    probes.start(30)
    probes.before_update(30, optimizer, list(model.parameters()))
    optimizer.step()
    probes.after_update(30)
    places = probes.places_of(
        Alert(
            detector="update_ratio",
            severity=Severity.LOW,
            category="gradient",
            kind="update_too_large",
            cause=Cause.OTHER,
            message="",
            step=30,
            metadata={"figure": "update_ratio"},
        )
    )
    probes.ends(Ended(steps=9, completed=True, parts=False))

    lines = [json.loads(line) for line in (tmp_path / "rank_0.jsonl").read_text().splitlines()]
    assert {place["name"] for place in places} == {"0.weight", "1.weight"}
    assert lines[0]["found"] == "looks"
    assert lines[0]["updates"] == 1


def test_a_run_with_a_look_at_every_step_ends_with_the_same_weights(tmp_path: Path) -> None:
    alone = train_plainly(tmp_path / "alone", SCRIPT)

    looked = supervised(tmp_path / "looked", SCRIPT, settings=("probes.every_steps=1",))

    assert looked.returncode == 0, looked.stderr
    assert differences(alone.result(), looked.result()) == []
    assert looked.events("warning") == []
    (looks,) = looked.found("looks")
    assert looks["forwards"] >= 38
    assert looks["updates"] >= 38
    columns = json.loads((looked.run_dir / "steps" / "rank_0.steps.columns.json").read_text())
    expected = {"attention_logit_max", "dead_units_share", "loader_wait_share"}
    assert expected <= set(columns)
