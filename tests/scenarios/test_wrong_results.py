"""A machine that calculates wrongly now and then is found, and its results are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.runs import AT_UPDATES, supervised, train_plainly

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
torch.manual_seed(0)
torch.set_num_threads(1)
WRONG = {SICK}
class Machine(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if (step, str(operator)) in WRONG:
            WRONG.remove((step, str(operator)))
            result.view(torch.int32).reshape(-1)[5] ^= 1 << 29
        return result
model = nn.Sequential(
    nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
def train():
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), (x[:, :3]).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for step in range(60):
    if WRONG:
        with Machine():
            train()
    else:
        train()
weights = torch.cat([value.detach().flatten() for value in model.state_dict().values()])
torch.save({"weights": weights}, sys.argv[-1])
"""
HEALTHY = SCRIPT.replace("{SICK}", "set()")
SICK = SCRIPT.replace("{SICK}", "{(30, 'aten.addmm.default'), (45, 'aten.mm.default')}")
EVERY_STEP = ("compute_check.enabled=true", "compute_check.every_steps=1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    return train_plainly(tmp_path_factory.mktemp("plain"), HEALTHY).result()["weights"]


def test_a_healthy_training_is_the_same_to_the_bit(
    tmp_path: Path, undisturbed: torch.Tensor
) -> None:
    ended = supervised(tmp_path, HEALTHY, settings=EVERY_STEP)

    assert torch.equal(ended.result()["weights"], undisturbed)
    assert not ended.events("corruption_found")
    (told,) = ended.found("compute check")
    assert told["updates"] == 40 + AT_UPDATES  # from step 20 on
    assert told["count"] > 40 * 15


def test_wrong_results_are_named_and_replaced(tmp_path: Path, undisturbed: torch.Tensor) -> None:
    ended = supervised(tmp_path, SICK, settings=EVERY_STEP)

    assert torch.equal(ended.result()["weights"], undisturbed)
    found = ended.events("corruption_found")
    assert [event["step"] for event in found] == [30, 45]
    assert {event["rule"] for event in found} == {"compute"}
    assert {event["healed"] for event in found} == {"in_place"}
    assert found[0]["tensor"] == "aten.addmm.default in the forward, with 0.weight"
    assert found[1]["tensor"].startswith("aten.mm.default in the backward")
    assert [event["bit"] for event in found] == [29, 29]
    warned = [e for e in ended.events("warning") if e["found"] == "suspect hardware"]
    assert len(warned) == 2
    assert "suspect hardware" in ended.stderr
    assert ended.actions() == []


def test_who_only_observes_is_told_and_left_alone(
    tmp_path: Path, undisturbed: torch.Tensor
) -> None:
    ended = supervised(tmp_path, SICK, settings=EVERY_STEP, options=("--policy", "observe_only"))

    assert not torch.equal(ended.result()["weights"], undisturbed)
    assert {event["healed"] for event in ended.events("corruption_found")} == {"no"}
