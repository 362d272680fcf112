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
