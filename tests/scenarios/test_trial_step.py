"""A loss that leaps and stays is decided by what older weights would give at one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.scenarios.runs import Ended, differences, supervised, train_plainly

SCRIPT = """
import copy, sys, torch
from torch import nn
from torch.nn import functional as F

CHANGE, AT = "WHAT", 120
torch.manual_seed(0)
torch.set_num_threads(1)
classes = torch.randn(10, 64)
model = nn.Sequential(
    nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
average = copy.deepcopy(model)
for step in range(220):
    labels = torch.randint(0, 10, (64,))
    images = classes[labels] + 3.0 * torch.randn(64, 64)
    if CHANGE == "labels" and step >= AT:
        labels = (labels + 3) % 10
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if CHANGE == "weights" and step == AT:
        for parameter in model.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters()):
            mean.lerp_(parameter, 0.05)
torch.save(
    {
        "model": model.state_dict(), "average": average.state_dict(), "loss": loss.item(),
        "moments": optimizer.state_dict()["state"], "random": torch.get_rng_state(),
    },
    sys.argv[-1],
)
"""
LABELS = SCRIPT.replace("WHAT", "labels")


def trial_of(ended: Ended) -> tuple[int, dict[str, Any]]:
    """The step that was a trial, and what it has said."""
    (said,) = [*ended.found("another level"), *ended.found("trial step")]
    return int(said["step"]), said


def test_a_state_that_the_script_spoils_is_rolled_back_with_the_evidence(tmp_path: Path) -> None:
    ended = supervised(tmp_path, SCRIPT.replace("WHAT", "weights"))

    assert ended.returncode == 0
    assert [name for name in ended.actions() if name != "checkpoint"] == ["trial_step", "rollback"]
    step, said = trial_of(ended)
    (back,) = (e for e in ended.events("action") if e["name"] == "rollback" and e.get("reason"))
    assert back["step"] == step
    assert back["reason"] == said["detail"]
    assert "the state of the training is to blame" in back["reason"]


def test_other_labels_are_adopted_and_the_weights_are_those_of_plain_python(tmp_path: Path) -> None:
    ended = supervised(tmp_path / "beside", LABELS)

    assert ended.returncode == 0
    assert set(ended.actions()) == {"checkpoint", "trial_step"}
    _, said = trial_of(ended)
    assert said["found"] == "another level"
    assert "far above the best level" not in ended.stderr.splitlines()[-1]
    plain = train_plainly(tmp_path / "alone", LABELS)
    assert differences(plain.result(), ended.result()) == []


def test_killed_before_and_after_a_resume_it_is_made_once(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path / "killed",
        LABELS,
        settings=("checkpoint.every_steps=50", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 135}, {kind: sigkill, step: 165}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact", "exact"]
    steps = {e["step"] for e in ended.found("another level")}
    assert len(steps) == 1
    plain = train_plainly(tmp_path / "alone", LABELS)
    assert differences(plain.result(), ended.result()) == []


def test_who_only_observes_makes_none(tmp_path: Path) -> None:
    ended = supervised(tmp_path / "beside", LABELS, options=("--policy", "observe_only"))

    plain = train_plainly(tmp_path / "alone", LABELS)
    assert ended.actions() == []
    assert differences(plain.result(), ended.result()) == []
