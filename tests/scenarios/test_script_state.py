"""What the script's Python holds is compared on arrival, and put back where it can be."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

KILLED = ("checkpoint.every_steps=4", "checkpoint.background=false")

METRICS = """
import os, tempfile
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = make_model(0.0); self.seen = {"losses": [], "outputs": []}
    def forward(self, x):
        out = self.body(x)
        if self.training:
            self.seen["losses"].append(float(out.mean()))
            self.seen["outputs"].append(out.detach()[:1])
        return out

def accuracy(model):
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(X), X[:, :7]], 1).numpy()
    model.train()
    return float((scores.argmax(1) == 0).mean() - abs(scores[:, 0]).mean())

def train():
    model = Counting(); optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    best, bad, folder, log = -1e9, 0, tempfile.mkdtemp(), open("log.csv", "w")
    for epoch in range(30):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            log.write(f"{loss.item()},{model.seen['losses'][-1]}\\n")
        now = accuracy(model); plateau.step(now)
        print(epoch, now, optimizer.param_groups[0]["lr"])
        if now > best:
            best, bad = now, 0
            torch.save(model.state_dict(), "best.pt")
        else:
            bad += 1
        if bad > 3 or epoch == 5:
            break
    os.rmdir(folder); log.close()
    best_weights = torch.load("best.pt")
    return {"best": best, "seen": model.seen, "weights": model.state_dict(), "kept": best_weights}
result = train()
"""


def test_an_evaluation_in_numpy_and_what_a_forward_keeps_are_those_of_the_recorded_run(
    tmp_path: Path,
) -> None:
    text = PRELUDE + METRICS + ENDING
    expected = train_plainly(tmp_path / "plain", text)
    assert expected.returncode == 0, expected.stderr

    killed = supervised(
        tmp_path / "killed", text, settings=KILLED, faults="[{kind: sigkill, step: 41}]"
    )

    assert killed.returncode == 0, killed.stderr
    (resumed,) = killed.events("resumed")
    assert resumed["exactness"] == "exact", resumed["reason"]
    compared = resumed["compared"]
    assert compared["equal"] > 50
    assert compared["different"] == 0
    assert any("seen['losses']" in path for path in compared["paths"])
    assert differences(expected.result(), killed.result()) == []
    assert killed.stdout.splitlines()[-1] == expected.stdout.splitlines()[-1]
    logs = [(ended.folder / "log.csv").read_text() for ended in (expected, killed)]
    assert logs[0] == logs[1]


CACHE = """
class Table:
    def __init__(self, width): self.width = width; self.asked = 0
class Caching(nn.Module):
    def __init__(self):
        super().__init__(); self.body = make_model(0.0); self.cache = {}
    def forward(self, x):
        table = self.cache.setdefault(x.shape[1], Table(x.shape[1])); table.asked += 1
        return self.body(x)
model = Caching(); optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(14):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"asked": model.cache[8].asked, **model.state_dict()}
"""


def test_an_object_that_only_a_forward_makes_is_named_in_an_approximate_resume(
    tmp_path: Path,
) -> None:
    killed = supervised(
        tmp_path / "killed",
        PRELUDE + CACHE + ENDING,
        settings=KILLED,
        faults="[{kind: sigkill, step: 9}]",
    )

    assert killed.returncode == 0, killed.stderr
    (resumed,) = killed.events("resumed")
    if resumed["exactness"] == "approximate":
        assert "main.model.cache[8]" in resumed["reason"]
        assert resumed["compared"]["different"] == 1
    else:  # the first forward was really executed, and its counter put back
        assert killed.result()["asked"] == 14


RESIZED = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noise, joined = torch.empty(1, 4), torch.empty(0)
for x in DataLoader(torch.randn(60, 4), batch_size=7):
    for rows in (2, 9, 30):
        noise.resize_(rows, 4).normal_()
        torch.cat([x, noise], out=joined.resize_(0))
        loss = model(joined).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x.resize_(100, 4)
torch.save(model.state_dict(), sys.argv[1])
"""


def test_a_script_may_resize_its_buffers_and_batches(tmp_path: Path) -> None:
    expected = train_plainly(tmp_path / "plain", RESIZED).result()
    faults = "[{kind: sigkill, step: 14}]"

    ended = supervised(tmp_path / "supervised", RESIZED, settings=KILLED, faults=faults)

    assert ended.returncode == 0, ended.stderr
    assert differences(ended.result(), expected) == []
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
