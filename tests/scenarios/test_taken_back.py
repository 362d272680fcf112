"""What a resume could not know is seen where the same steps are trained again, or said at once."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import Ended, supervised

OF_THE_PROCESS = (
    PRELUDE
    + """
import os
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(30):
    rows = torch.randint(96, (32,))
    x = X[rows] * (1 + os.getpid() * 1e-6) if step > 12 else X[rows]
    optimizer.zero_grad(); F.mse_loss(model(x), Y[rows]).backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)
AROUND_AN_EPOCH = (
    PRELUDE
    + """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        for rows in torch.randperm(96).split(12):
            loss = F.mse_loss(model(X[rows]).float(), Y[rows])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)


def killed(folder: Path, script: str, every: int) -> Ended:
    ended = supervised(
        folder,
        script,
        settings=[f"checkpoint.every_steps={every}", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 17}]",
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def test_a_step_with_another_loss_than_before_the_kill_takes_exact_back(tmp_path: Path) -> None:
    ended = killed(tmp_path, OF_THE_PROCESS, 10)

    resumed = [(e["step"], e["from_step"], e["exactness"]) for e in ended.events("resumed")]
    assert resumed == [(10, 10, "exact"), (13, 10, "approximate")]
    (told,) = (e for e in ended.events("warning") if e.get("found") == "another loss")
    assert told["loss"] != told["recorded_loss"]
    assert "the resume was not exact" in ended.stderr


def test_casts_that_autocast_keeps_across_updates_are_told_at_once(tmp_path: Path) -> None:
    ended = killed(tmp_path, AROUND_AN_EPOCH, 12)

    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "torch.autocast was on before earlier updates" in resumed["reason"]
    assert "the forwards do not see the updates" in ended.stderr
