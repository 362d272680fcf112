"""A script that looks at its own loss, and leaves a batch out behind its backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

SCRIPT = """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]) * (float("nan") if step % 7 == 3 else 1.0)
    loss.backward()
    if not torch.isfinite(loss):
        optimizer.zero_grad(set_to_none=SET_TO_NONE)
        continue
    optimizer.step(); optimizer.zero_grad(set_to_none=SET_TO_NONE)
result = model.state_dict()
"""


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_updates_behind_it_are_sound(tmp_path: Path, set_to_none: bool) -> None:
    script = SCRIPT.replace("SET_TO_NONE", str(set_to_none))
    text = PRELUDE + script + ENDING.replace("-1", "1")

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=("checkpoint.every_steps=5", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 17}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), expected.stderr + ended.stderr
    assert set(ended.actions()) <= {"checkpoint"}  # the first row is low by chance
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert differences(expected.result(), ended.result()) == []
