"""Fused optimizers divide by a GradScaler's scale and leave updates out themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.records import StepRecord
from supervisor.storage.steps.flight_reader import FlightReader
from tests.scenarios.runs import Ended, differences, supervised, train_plainly

# Overflows at steps 0, 1 and 40. The second
# optimizer follows the first, with gradients of its own.
SCALED = """
import sys, warnings
import torch
from torch import nn
torch.manual_seed(2)
fused = sys.argv[2] == "fused"
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
head = nn.Linear(4, 4)
first = torch.optim.AdamW(net.parameters(), 1e-2, fused=fused, foreach=not fused)
second = torch.optim.AdamW(head.parameters(), 1e-2, fused=fused, foreach=not fused)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
for i in range(80):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(head(net(x)), x[:, :4].argmax(1))
    if i in (0, 1, 40):
        loss = loss * 1e37
    first.zero_grad()
    second.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
torch.save({"net": net.state_dict(), "head": head.state_dict(), "scale": scaler.get_scale(),
            "first": first.state_dict()["state"]}, sys.argv[1])
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    folder = tmp_path_factory.mktemp("scaled")
    return {way: supervised(folder / way, SCALED, ("out.pt", way)) for way in ("fused", "foreach")}


def _records(ended: Ended) -> list[StepRecord]:
    with FlightReader(ended.run_dir / "steps" / "rank_0.steps") as reader:
        return reader.records()


def test_the_norm_is_that_of_the_gradients_without_the_scale(runs: dict[str, Ended]) -> None:
    fused, foreach = _records(runs["fused"]), _records(runs["foreach"])

    assert len(fused) == len(foreach) == 80
    assert max(r.grad_norm for r in fused if not r.scaler_skipped) < 10.0
    for one, other in zip(fused[:39], foreach[:39], strict=True):
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-3)
        assert one.loss_scale == other.loss_scale


def test_what_the_scaler_leaves_out_is_no_trouble(runs: dict[str, Ended], tmp_path: Path) -> None:
    ended = runs["fused"]

    assert ended.returncode == 0, ended.stderr
    assert [r.step for r in _records(ended) if r.scaler_skipped] == [0, 1, 40]
    assert [r.step for r in _records(runs["foreach"]) if r.scaler_skipped] == [0, 1, 40]
    assert ended.actions() == runs["foreach"].actions()  # as for any loss that leaps
    assert ended.events("update_skipped") == [] == ended.events("warning")
    plain = train_plainly(tmp_path, SCALED, ("out.pt", "fused"))
    assert not differences(plain.result(), ended.result())
