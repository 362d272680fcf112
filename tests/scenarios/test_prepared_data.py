"""Scripts that prepare data before they train, and find them prepared when they are resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.runs import Ended, supervised, train_plainly

PREPARING = """
import json, os, random, sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0); random.seed(0)
if not os.path.exists("split.json"):
    with open("split.json", "w") as file:
        json.dump(random.sample(range(40), 20), file)
with open("split.json") as file:
    split = json.load(file)
order = random.sample(range(20), 20)
X, Y = torch.randn(40, 4), torch.randn(40, 1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for number in order * 2:
    {batch}
    loss = ((output - Y[split[number]]) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
"""
WITHOUT_NAME = "output = model(X[split[number]][None])"
NAMED = "batch = X[split[number]][None]; output = model(batch)"
SETTINGS = ("checkpoint.every_steps=5", "checkpoint.background=false")


@pytest.mark.parametrize("batch", [WITHOUT_NAME, NAMED])
def test_a_script_that_finds_its_prepared_data_is_not_called_exact_where_it_is_not(
    tmp_path: Path, batch: str
) -> None:
    text = PREPARING.replace("{batch}", batch)
    undisturbed = train_plainly(tmp_path / "plain", text)

    ended = supervised(
        tmp_path / "killed", text, settings=SETTINGS, faults="[{kind: sigkill, step: 13}]"
    )

    assert ended.returncode == 0, ended.stderr
    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "exact" or resumed["reason"]
    assert resumed["exactness"] != "exact" or _weights(ended) == _weights(undisturbed)


CACHING = """
import os, sys
import torch

torch.set_num_threads(1); torch.manual_seed(0)
if not os.path.exists("data/prepared.pt"):
    os.makedirs("data", exist_ok=True)
    raw = torch.arange(400.0).reshape(100, 4).sin()
    torch.save(torch.stack([row for row in raw if row.sum() > -1]), "data/prepared.pt")
X = torch.load("data/prepared.pt")
assert not torch.equal(X, X.abs())
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
best = 1e9
for step in range(25):
    rows = torch.randperm(len(X))[:8]
    loss = ((model(X[rows]) - X[rows].sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if loss.item() < best:
        best = loss.item(); optimizer.param_groups[0]["lr"] *= 0.99
torch.save(model.state_dict(), sys.argv[1])
"""


def test_what_is_read_before_the_training_need_not_be_read_again(tmp_path: Path) -> None:
    undisturbed = train_plainly(tmp_path / "plain", CACHING)

    ended = supervised(
        tmp_path / "killed", CACHING, settings=SETTINGS, faults="[{kind: sigkill, step: 13}]"
    )

    assert ended.returncode == 0, ended.stderr
    assert [event["exactness"] for event in ended.events("resumed")] == ["exact"]
    assert _weights(ended) == _weights(undisturbed)


def _weights(ended: Ended) -> list[float]:
    state = torch.load(ended.folder / "out.pt", weights_only=True)
    return [value for tensor in state.values() for value in tensor.flatten().tolist()]


HALF_WRITTEN = """
import os, signal, subprocess, sys
import torch

torch.set_num_threads(1); torch.manual_seed(0)
out, struck = sys.argv[1:]
if not os.path.exists("data/y.pt"):
    os.makedirs("data", exist_ok=True)
    torch.save(torch.arange(40.0).reshape(10, 4).cos(), "data/x.pt")
    X = torch.load("data/x.pt")
    with open("data/y.pt", "wb") as file:
        if not os.path.exists(struck):
            subprocess.run(["touch", struck])
            os.kill(os.getpid(), signal.SIGKILL)
        torch.save(X.sum(1), file)
X, Y = torch.load("data/x.pt"), torch.load("data/y.pt")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(25):
    loss = ((model(X)[:, 0] - Y) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), out)
"""


def test_half_a_file_left_by_a_kill_does_not_stop_every_later_start(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "struck before").touch()
    plain = ("out.pt", str(elsewhere / "struck before"))
    undisturbed = train_plainly(tmp_path / "plain", HALF_WRITTEN, plain)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "own.txt").write_text("the user's")

    ended = supervised(
        tmp_path / "killed", HALF_WRITTEN, ("out.pt", str(elsewhere / "struck")), settings=SETTINGS
    )

    assert ended.returncode == 0, ended.stderr
    assert len(ended.events("attempt_started")) == 3
    assert _weights(ended) == _weights(undisturbed)
    (warning,) = [e for e in ended.events("warning") if "earlier attempts left" in e["message"]]
    assert "2 file(s)" in warning["message"]
    kept = tmp_path / "killed" / "run" / "aside" / "attempt_2" / "data"
    assert sorted(path.name for path in kept.iterdir()) == ["x.pt", "y.pt"]
    assert (tmp_path / "killed" / "own.txt").read_text() == "the user's"


FEATURES = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.set_num_threads(1); torch.manual_seed(0)
X = torch.randn(64, 6); Y = (X[:, 0] > 0).long()

class Features(Dataset):
    def __init__(self, encoder, loader):
        self.rows = []
        encoder.eval()
        with torch.no_grad():
            for x, y in loader:
                self.rows += [(row, label.item()) for row, label in zip(encoder(x), y)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]

def pretrain():
    encoder = nn.Linear(6, 6)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.02)
    for epoch in range(2):
        for x, _ in DataLoader(TensorDataset(X, Y), 16, shuffle=True):
            loss = (encoder(x) - x).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    return encoder

encoder = pretrain()
data = Features(encoder, DataLoader(TensorDataset(X, Y), 32))
head = nn.Linear(6, 2)
optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
for epoch in range(5):
    for x, y in DataLoader(data, 8, shuffle=True):
        loss = nn.functional.cross_entropy(head(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save([head.state_dict(), encoder.state_dict()], sys.argv[1])
"""


def test_a_data_set_made_of_what_the_model_gave_is_as_it_was_in_a_replay(tmp_path: Path) -> None:
    undisturbed = train_plainly(tmp_path / "plain", FEATURES)

    ended = supervised(
        tmp_path / "killed", FEATURES, settings=SETTINGS, faults="[{kind: sigkill, step: 28}]"
    )

    assert ended.returncode == 0, ended.stderr
    (resumed,) = ended.events("resumed")
    assert (resumed["exactness"], resumed["from_step"]) == ("exact", 25)
    before, after = (torch.load(one.folder / "out.pt") for one in (undisturbed, ended))
    for one, other in zip(before, after, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
