"""Optimizers that are made anew every few steps are supervised from their first update on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised, train_plainly

EACH_EPOCH = (
    PRELUDE
    + """
model = make_model(0.0)
for epoch in range(6):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for part in range(10):
        rows = torch.randperm(len(X))[:8]
        loss = F.mse_loss(model(X[rows]), Y[rows])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)

FEDERATED = (
    PRELUDE
    + """
import copy
shared = make_model(0.0)
for turn in range(4):
    states = []
    for client in range(3):
        model = copy.deepcopy(shared)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for part in range(5):
            rows = torch.randperm(len(X))[:8]
            loss = F.mse_loss(model(X[rows]), Y[rows])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        states.append(model.state_dict())
    shared.load_state_dict({k: sum(s[k] for s in states) / 3 for k in states[0]})
torch.save(shared.state_dict(), sys.argv[-1])
"""
)

INNER_LOOPS = (
    PRELUDE
    + """
import copy
model = make_model(0.0)
outer = torch.optim.Adam(model.parameters(), lr=0.01)
for turn in range(20):
    learner = copy.deepcopy(model)
    inner = torch.optim.SGD(learner.parameters(), lr=0.05)
    for part in range(3):
        rows = torch.randperm(len(X))[:8]
        loss = F.mse_loss(learner(X[rows]), Y[rows])
        inner.zero_grad(); loss.backward(); inner.step()
    outer.zero_grad()
    for p, q in zip(model.parameters(), learner.parameters()): p.grad = p.data - q.data
    outer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)


def _same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "script",
    [
        EACH_EPOCH,
        pytest.param(FEDERATED, marks=pytest.mark.exhaustive),
        pytest.param(INNER_LOOPS, marks=pytest.mark.exhaustive),
    ],
)
def test_they_are_seen_from_their_first_step_and_resume_as_without_us(
    tmp_path: Path, script: str
) -> None:
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
    expected = train_plainly(tmp_path / "plain", script).result()

    killed = supervised(
        tmp_path / "killed",
        script,
        settings=["checkpoint.every_steps=7", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 37}]",
    )

    assert killed.returncode == 0, killed.stderr
    assert _same(killed.result(), expected)
    assert killed.actions() == []
    assert killed.events("run_finished")[-1]["state"] == "completed"
    assert "not supervised" not in killed.stderr
    (resumed,) = killed.events("resumed")
    assert resumed["from_step"] >= 14  # beyond the first optimizer


@pytest.mark.parametrize(
    "script", [EACH_EPOCH, pytest.param(FEDERATED, marks=pytest.mark.exhaustive)]
)
def test_a_poisoned_batch_of_a_later_one_is_left_out(tmp_path: Path, script: str) -> None:
    ended = supervised(tmp_path, script, faults="[{kind: nan_loss, step: 43}]")

    assert ended.returncode == 0, ended.stderr
    assert [e["step"] for e in ended.events("update_skipped")] == [43]
    assert all(bool(value.isfinite().all()) for value in ended.result().values())


def test_an_optimizer_that_is_none_of_torch_is_named_while_the_training_runs(
    tmp_path: Path,
) -> None:
    script = (
        PRELUDE
        + """
model = make_model(0.0)
for step in range(130):
    loss = F.mse_loss(model(X), Y)
    model.zero_grad(); loss.backward()
    with torch.no_grad():
        for p in model.parameters(): p -= 0.02 * p.grad
torch.save(model.state_dict(), sys.argv[-1])
"""
    )

    ended = supervised(tmp_path, script)

    assert ended.returncode == 0, ended.stderr
    warnings = [e["message"] for e in ended.events("warning")]
    assert sum("100 backward passes" in message for message in warnings) == 1
    assert ended.stderr.count("backward passes") == 2  # at once, and counted at the end
