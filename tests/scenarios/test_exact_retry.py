"""Before a treatment that costs steps the same steps are computed once more: was it the machine?"""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.runs import Ended, differences, plain, supervised

SCRIPT = """
import math, sys, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(100):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    FAULT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "loss": loss.detach()}, sys.argv[-1])
"""
OF_THE_DATA = "if 40 <= step < 43: loss = loss * math.nan"
OF_THE_MACHINE = "[{kind: nan_loss, step: 40, every: true, count: 2}]"
SETTINGS = ("checkpoint.every_steps=10", "snapshot.every_steps=10")


def train(folder: Path, fault: str = "", faults: str = "", *, retries: bool = True) -> Ended:
    folder.mkdir()
    policy = folder / "policy.yaml"
    policy.write_text(f"defaults: [default]\nexact_retry: {str(retries).lower()}\n")
    text = SCRIPT.replace("FAULT", fault)
    options = ("--policy", str(policy))
    return supervised(folder, text, settings=SETTINGS, options=options, faults=faults)


def test_what_does_not_come_again_was_the_machine_and_nothing_is_treated(tmp_path: Path) -> None:
    undisturbed = plain(tmp_path / "plain", SCRIPT.replace("FAULT", "")).result()

    ended = train(tmp_path / "run", faults=OF_THE_MACHINE)

    assert ended.returncode == 0, ended.stderr
    assert differences(ended.result(), undisturbed) == []
    (asked,) = ended.found("exact retry asked")
    assert asked["step"] == 41
    assert asked["before_step"] in (10, 20, 30)  # the newest that is written by then
    assert [event["exactness"] for event in ended.events("resumed")] == ["exact"]
    (warned,) = [e for e in ended.events("warning") if e["found"] == "suspect hardware"]
    assert "step 40 came out otherwise" in warned["message"]
    assert "suspect hardware" in ended.stderr
    assert set(ended.actions()) <= {"skip_update", "checkpoint"}
    assert ended.events("rollback") == []


def test_what_comes_again_to_the_bit_is_treated(tmp_path: Path) -> None:
    ended = train(tmp_path / "run", OF_THE_DATA)

    assert ended.returncode == 0, ended.stderr
    (repeated,) = ended.found("exact retry repeated")
    assert repeated["step"] == 41
    assert [event["exactness"] for event in ended.events("resumed")] == ["exact"]
    assert [event["attempt"] for event in ended.events("rollback")] == [2]
    assert [e for e in ended.events("warning") if e["found"] == "suspect hardware"] == []


def test_without_a_checkpoint_before_the_trouble_the_ladder_goes_on_at_once(tmp_path: Path) -> None:
    fault = OF_THE_DATA.replace("40", "15").replace("43", "18")

    ended = train(tmp_path / "run", fault)

    assert ended.found("exact retry asked") == []
    assert len(ended.events("rollback")) == 1
