"""A real run alarms, saves and shows at the thresholds of its policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import again, supervised

ONE_HARD_BATCH = (
    PRELUDE
    + """
model = nn.Linear(8, 1); optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(140):
    rows = torch.randint(96, (32,))
    loss = F.mse_loss(model(X[rows]), Y[rows] * (4.0 if step == 120 else 1.0))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)


@pytest.mark.parametrize(
    ("alarm", "is_alarm"), [(0.5, True), pytest.param(0.8, False, marks=pytest.mark.exhaustive)]
)
def test_a_run_alarms_and_keeps_saving_by_its_own_threshold(
    tmp_path: Path, alarm: float, is_alarm: bool
) -> None:
    settings = (
        f"policy.alarm_threshold={alarm}",
        "policy.rungs=[]",
        "policy.guard.skip_spike=false",
        "checkpoint.every_steps=1",
        "checkpoint.background=false",
        "checkpoint.keep_last=200",
    )

    ended = supervised(tmp_path, ONE_HARD_BATCH, settings=settings)

    risks = {event["step"]: event for event in ended.events("risk")}
    saved = {event["step"] for event in ended.events("checkpoint_saved")}
    assert risks[120]["probability"] == 0.6
    assert risks[120]["alarm"] is is_alarm
    assert {120, 122} <= saved
    assert (121 in saved) is not is_alarm
    assert again(ended, "watch", "--once", "run").returncode == 0
