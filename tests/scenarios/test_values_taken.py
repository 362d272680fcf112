"""Scripts that decide by values which they take out of tensors in many ways, killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.runs import Ended, supervised, train_plainly

_DATA = """
import sys
import numpy as np
import torch
from torch import nn
torch.manual_seed(3)
X = torch.randn(960, 12)
Y = (X @ torch.randn(12, 5)).argmax(1)
Y[:640] = torch.where(torch.rand(640) < 0.5, torch.randint(0, 5, (640,)), Y[:640])
net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 5))
opt = torch.optim.Adam(net.parameters(), 2e-2)
def train():
    net.train()
    for rows in torch.randperm(640).split(32):
        loss = nn.functional.cross_entropy(net(X[rows]), Y[rows])
        opt.zero_grad(); loss.backward(); opt.step()
"""

RANKED = (
    _DATA
    + """
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, "max", factor=0.5, patience=0)
best, truth = -1.0, Y[640:].numpy()
for epoch in range(10):
    train()
    net.eval()
    with torch.no_grad():
        scores = np.concatenate([np.asarray(net(x).softmax(1)) for x in X[640:].split(64)])
    order = scores.ravel().argsort(kind="stable")
    ranks = np.empty(order.size); ranks[order] = np.arange(order.size)
    hit = np.eye(5, dtype=bool)[truth].ravel()
    auc = (ranks[hit].sum() - hit.sum() * (hit.sum() - 1) / 2) / (hit.sum() * (~hit).sum())
    matrix = np.zeros((5, 5), int)
    np.add.at(matrix, (truth, np.argmax(scores, 1)), 1)
    if matrix.trace() > best:
        best = matrix.trace()
        torch.save(net.state_dict(), "best.pt")
    plateau.step(auc)
    with open("log.txt", "a") as log:
        print(epoch, auc, matrix.tolist(), opt.param_groups[0]["lr"], file=log)
torch.save(net.state_dict(), sys.argv[-1])
"""
)

STOPPED = (
    _DATA
    + """
best, bad = 1e9, 0
for epoch in range(12):
    train()
    net.eval()
    with torch.no_grad():
        out = net(X[640:])
    logs = out.log_softmax(1).numpy()
    nll = -logs[np.arange(320), Y[640:].numpy()].mean()
    listed = sum(max(row) for row in out.softmax(1).tolist()) / 320
    wrong = int((out.argmax(1) != Y[640:]).sum())
    view = out.numpy()
    view -= view.max(1, keepdims=True)  # through NumPy into the tensor
    with open("log.txt", "a") as log:
        print(epoch, nll, listed, wrong, f"{out.exp().sum().item():.9g}", file=log)
    best, bad = (nll, 0) if nll < best else (best, bad + 1)
    if bad == 2:
        break
torch.save(net.state_dict(), sys.argv[-1])
"""
)
COMPARED = (
    _DATA
    + """
centres, rounds = torch.randn(5, 5), 0
for epoch in range(6):
    train()
    net.eval()
    with torch.no_grad():
        out = net(X[640:])
    while True:
        nearest, rounds = torch.cdist(out, centres).argmin(1), rounds + 1
        members = [torch.cat([(nearest == c).nonzero()[:, 0], torch.tensor([c])]) for c in range(5)]
        new = torch.stack([out[rows].mean(0) for rows in members])
        if new.equal(centres) or new.allclose(centres, rtol=1e-3):
            break
        centres = new
    opt.param_groups[0]["lr"] *= 0.9 if (nearest != Y[640:]).any().is_nonzero() else 0.8
    with open("log.txt", "a") as log:
        print(epoch, rounds, nearest.bincount().tolist(), file=log)
torch.save(net.state_dict(), sys.argv[-1])
"""
)
_SETTINGS = ("checkpoint.every_steps=20", "checkpoint.background=false")


def _resumes(ended: Ended) -> list[str]:
    assert ended.returncode == 0, ended.stderr
    return [event["exactness"] for event in ended.events("resumed")]


@pytest.mark.parametrize(
    ("script", "step"),
    [pytest.param(RANKED, 170, marks=pytest.mark.exhaustive), (STOPPED, 110), (COMPARED, 90)],
    ids=["auc", "stop", "compared"],
)
def test_decisions_by_values_of_any_size_are_those_of_the_undisturbed_run(
    tmp_path: Path, script: str, step: int
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    undisturbed = train_plainly(tmp_path / "a", script)
    killed = supervised(
        tmp_path / "b",
        script,
        settings=_SETTINGS,
        faults=f"[{{kind: sigkill, step: {step}}}]",
    )

    assert _resumes(killed) == ["exact"], killed.events("resumed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert (tmp_path / "b/log.txt").read_text() == (tmp_path / "a/log.txt").read_text()
    for name in ("out.pt", *(("best.pt",) if script is RANKED else ())):
        states = zip(killed.result(name).values(), undisturbed.result(name).values(), strict=True)
        assert all(torch.equal(one, other) for one, other in states)


def test_a_full_tape_is_told_when_it_is_full_and_named_by_the_resume(tmp_path: Path) -> None:
    killed = supervised(
        tmp_path,
        RANKED,
        settings=(*_SETTINGS, "fast_forward.tape_budget_mib=0.02"),
        faults="[{kind: sigkill, step: 170}]",
    )

    assert _resumes(killed) == ["approximate"]
    (told,) = (e for e in killed.events("warning") if "no longer recorded" in e["message"])
    (resumed,) = killed.events("resumed")
    assert told["step"] < 100
    assert "tape_budget_mib" in resumed["reason"]
    full, why = (
        line for line in killed.stderr.splitlines() if "no longer recorded from step" in line
    )
    assert "warning" in full
    assert "resumed approximately" in why
