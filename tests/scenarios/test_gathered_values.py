"""Trainings within something that gathers what their steps return."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import Ended, differences, supervised, train_plainly

SCRIPT = (
    PRELUDE
    + """
model = make_model(0.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
def step(number):
    rows = slice(number % 4 * 16, number % 4 * 16 + 16)
    loss = F.mse_loss(model(X[rows]), Y[rows])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.detach()
def train():
    number = torch.ones(())  # has the name of the comprehension's variable
    found = {0}
    return {{"found": torch.as_tensor(found), "number": number}}
torch.save({{**train(), **model.state_dict()}}, sys.argv[-1])
"""
)
LISTED = "[float(one) for one in [step(number) for number in range(20)]]"
MAPPED = "list({number: step(number) for number in range(20)}.values())"
OF_NUMBERS = "sum(step(number).item() for number in range(20))"
SUMMED = "sum(step(number) for number in range(20))"
UNPACKED = "[*map(step, range(20))]"
FROM_311 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="on Python 3.10 it is called approximate, and ends the same"
)
SETTINGS = ("checkpoint.every_steps=4", "checkpoint.background=false")
KILL = "[{kind: sigkill, step: 10, moment: update}]"


def _killed(folder: Path, gathering: str) -> tuple[Ended, list[str]]:
    """Returns the run, and what is not as with plain python."""
    text = SCRIPT.format(gathering)
    plainly = train_plainly(folder / "plain", text)
    ended = supervised(folder / "killed", text, settings=SETTINGS, faults=KILL)
    assert (plainly.returncode, ended.returncode) == (0, 0), ended.stderr
    return ended, differences(plainly.result(), ended.result())


@pytest.mark.parametrize("gathering", [LISTED, MAPPED, pytest.param(OF_NUMBERS, marks=FROM_311)])
def test_what_a_comprehension_has_gathered_comes_back(tmp_path: Path, gathering: str) -> None:
    ended, different = _killed(tmp_path, gathering)

    assert [event["exactness"] for event in ended.events("resumed")] == ["exact"]
    assert different == []


@pytest.mark.parametrize("gathering", [SUMMED, f"torch.stack({UNPACKED})"])
def test_tensors_that_a_function_in_c_gathers_are_told(tmp_path: Path, gathering: str) -> None:
    ended, _ = _killed(tmp_path, gathering)

    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "gathers tensors out of sight: train line" in resumed["reason"]
