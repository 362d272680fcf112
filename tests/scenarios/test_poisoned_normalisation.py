"""A NaN batch that has passed a normalisation before its update can be left out."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised, train_plainly

SCRIPT = (
    PRELUDE
    + """
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    i = torch.randint(0, 96, (16,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
with torch.no_grad(): value = F.mse_loss(model(X), Y)
torch.save({"value": value}, sys.argv[-1])
"""
)


def test_running_figures_are_healed_with_the_update_left_out(tmp_path: Path) -> None:
    expected = train_plainly(tmp_path / "plain", SCRIPT).result()["value"]

    ended = supervised(
        tmp_path / "run",
        SCRIPT,
        settings=("snapshot.every_steps=10",),
        faults="[{kind: nan_data, step: 40}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert len(ended.events("update_skipped")) == 1
    assert abs(float(ended.result()["value"]) / float(expected) - 1.0) < 0.05
