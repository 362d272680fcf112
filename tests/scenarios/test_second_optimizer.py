"""A poisoned update of an optimizer behind the main optimizer: left out with a receipt, or only
told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised

SCRIPT = (
    PRELUDE
    + """
first, second = make_model(0.0), make_model(0.0)
leads, follows = (torch.optim.SGD(m.parameters(), lr=0.02) for m in (first, second))
for step in range(40):
    for model, optimizer in ((first, leads), (second, follows)):
        loss = F.mse_loss(model(X), Y)
        optimizer.zero_grad(); loss.backward()
        if step == 30 and optimizer is follows: model[0].weight.grad.fill_(torch.nan)
        optimizer.step()
torch.save(second[0].weight.detach(), sys.argv[-1])
"""
)


@pytest.mark.parametrize(
    ("policy", "outcome"), [("default", "applied"), ("observe_only", "would_have")]
)
def test_a_poisoned_update_of_a_second_optimizer(tmp_path: Path, policy: str, outcome: str) -> None:
    ended = supervised(tmp_path, SCRIPT, options=("--policy", policy))

    assert ended.returncode == 0, ended.stderr
    first = next(e for e in ended.events("action") if "second optimizer" in e["reason"])
    assert (first["name"], first["cause"]) == ("skip_update", "nonfinite")
    assert (first["outcome"], first["rung"]) == (outcome, -1)
    assert bool(torch.isfinite(ended.result()).all()) == (policy == "default")
    left_out = [e["step"] for e in ended.events("update_skipped")]
    assert left_out == ([first["step"]] if policy == "default" else [])
